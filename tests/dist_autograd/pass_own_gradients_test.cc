// The memory of the gradients of a pass, and sums of sparse gradients with each other and with dense ones.
#include "tests/dist_autograd/kinds_support.h"

namespace weft::dist_autograd::test::pass_own_gradients_test {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;
using weft::test::got;

// The gradient that the backward of a custom function returned, and whether the function keeps views of it.
struct Seen {
  const void* memory = nullptr;
  bool keep_views = false;
  at::Tensor indices, values;
};
const void* memory_of(const at::Tensor& tensor) {
  return tensor.is_sparse() ? tensor._values().const_data_ptr() : tensor.const_data_ptr();
}

struct PassOn : Function<PassOn> {
  static at::Tensor forward(AutogradContext* context, at::Tensor x, std::int64_t seen) {
    context->saved_data["seen"] = seen;
    return x.clone();
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    Seen& seen = *reinterpret_cast<Seen*>(context->saved_data["seen"].toInt());
    seen.memory = memory_of(gradients[0]);
    if (seen.keep_views) seen.indices = gradients[0]._indices(), seen.values = gradients[0]._values();
    return {std::move(gradients[0]), {}};
  }
};
at::Tensor pass_on(const at::Tensor& x, Seen& seen) {
  return PassOn::apply(x, reinterpret_cast<std::int64_t>(&seen));
}

// Returns one gradient for both inputs. Its indices and values are expanded.
struct Expanded : Function<Expanded> {
  static at::Tensor forward(AutogradContext*, at::Tensor x, at::Tensor y) { return x + y; }
  static variable_list backward(AutogradContext*, variable_list) {
    const at::Tensor values = at::full({1, 3}, 0.5, at::kDouble).expand({8, 3});
    const at::Tensor indices = at::ones({1, 1}, at::kLong).expand({1, 8});
    const at::Tensor gradient = at::sparse_coo_tensor(indices, values, {10, 3});
    return {gradient, gradient};
  }
};

struct PassMemory : ::testing::Test {
  Cluster cluster{1};
  at::Tensor a = torch::rand({10, 3}, at::kDouble).requires_grad_();
  at::Tensor b = torch::rand({10, 3}, at::kDouble).requires_grad_();
  at::Tensor ids = torch::tensor({1, 2, 4, 5, 4, 3, 2, 9}), offsets = torch::tensor({0, 4});
  at::Tensor looked_up(const at::Tensor& table) {
    namespace F = torch::nn::functional;
    return F::embedding_bag(ids, table,
                            F::EmbeddingBagFuncOptions().offsets(offsets).mode(torch::kSum).sparse(true))
        .sum();
  }
  at::Tensor looked_up_gradient() {
    const at::Tensor table = a.detach().clone().requires_grad_();
    looked_up(table).backward();
    return table.grad().to_dense();
  }
};

TEST_F(PassMemory, OfAGradientWithoutOtherReferencesIsKept) {
  Seen seen;
  Pass pass{cluster[0]};
  got(pass.backward(pass_on(a, seen)[1][0]));
  EXPECT_EQ(memory_of(pass.gradient(a)), seen.memory);
}

TEST_F(PassMemory, OfTwoLeavesIsNeverShared) {
  Pass pass{cluster[0]};
  got(pass.backward((a + b)[1][0]));
  EXPECT_NE(memory_of(pass.gradient(a)), memory_of(pass.gradient(b)));
  pass.gradient(a).mul_(0);
  EXPECT_EQ(pass.gradient(b).sum().item<double>(), 1);
}

TEST_F(PassMemory, OfAnExpandedGradientIsCopied) {
  Pass pass{cluster[0]};
  got(pass.backward(a.sum()));
  pass.gradient(a)[0][0] = 5;
  EXPECT_EQ(pass.gradient(a).sum().item<double>(), 34);
}

TEST_F(PassMemory, OfAGradientThatAPostHookSeesIsKept) {
  struct Look : torch::autograd::FunctionPostHook {
    variable_list operator()(const variable_list& outputs, const variable_list&) override { return outputs; }
  };
  Seen seen;
  const auto accumulator = torch::autograd::impl::gradient_edge(a).function;
  accumulator->add_post_hook(std::make_unique<Look>());
  Pass pass{cluster[0]};
  got(pass.backward(pass_on(a, seen)[1][0]));
  EXPECT_EQ(memory_of(pass.gradient(a)), seen.memory);
}

// The layout is that of the weight of a linear layer, which transposes it.
TEST_F(PassMemory, OfAViewWithoutOtherReferencesIsKept) {
  Seen seen;
  Pass pass{cluster[0]};
  got(pass.backward(torch::rand({4, 3}, at::kDouble).mm(pass_on(a, seen).t()).sum()));
  EXPECT_EQ(memory_of(pass.gradient(a)), seen.memory);
}

// The gradients of both leaves are views of one tensor, and nothing else refers to either view.
TEST_F(PassMemory, OfTwoViewsOfOneGradientIsNeverShared) {
  const at::Tensor x = torch::rand({2, 3}).requires_grad_(), y = torch::rand({3, 2}).requires_grad_();
  Pass pass{cluster[0]};
  got(pass.backward(((x.view({6}) + y.view({6})) * 2).sum()));
  EXPECT_NE(memory_of(pass.gradient(x)), memory_of(pass.gradient(y)));
  pass.gradient(x).mul_(0);
  EXPECT_EQ(pass.gradient(y).sum().item<float>(), 12);
}

TEST_F(PassMemory, OfASecondBackwardIsThatOfTheFirst) {
  Pass pass{cluster[0]};
  const at::Tensor loss = (a * a).sum();
  got(pass.backward(loss, {}, {.retain_graph = true}));
  const at::Tensor first = pass.gradient(a);
  const void* const memory = memory_of(first);
  got(pass.backward(loss, {}, {.retain_graph = true}));
  EXPECT_EQ(memory_of(pass.gradient(a)), memory) << "in place, as .grad is";
  expect_equal(pass.gradient(a), 4 * a.detach(), "of two backwards");
  got(pass.backward(loss, {}, {.create_graph = true}));
  EXPECT_NE(memory_of(pass.gradient(a)), memory) << "recorded: out of place";
  expect_equal(pass.gradient(a).detach(), 6 * a.detach(), "of three");
  expect_equal(first, 4 * a.detach(), "as it was");
}

// Leaves of every layout: contiguous, transposed, channels last, and with gaps between elements.
TEST_F(PassMemory, IsLaidOutAsGradOfLibTorchIs) {
  const at::Tensor image = torch::rand({2, 3, 4, 5});
  const std::vector<at::Tensor> values{image, image.transpose(1, 3),
                                       image.contiguous(at::MemoryFormat::ChannelsLast),
                                       image.slice(3, 0, 5, 2), image.expand({2, 3, 4, 5})};
  for (const at::Tensor& value : values)
    for (const bool transposed : {false, true}) {  // the gradient that arrives at the leaf
      const auto forward = [&](const at::Tensor& leaf) {
        const at::Tensor used = transposed ? leaf.transpose(0, 3).contiguous() : leaf;
        return used.sin().sum();
      };
      const at::Tensor x = value.detach().requires_grad_(), y = value.detach().requires_grad_();
      forward(y).backward();
      Pass pass{cluster[0]};
      got(pass.backward(forward(x)));
      EXPECT_EQ(pass.gradient(x).strides(), y.grad().strides()) << value.strides();
      EXPECT_TRUE(pass.gradient(x).equal(y.grad()));
    }
}

TEST_F(PassMemory, OfASparseGradientIsKeptThoughItsPartsAreViewed) {
  for (const bool viewed : {false, true}) {
    Seen seen;
    seen.keep_views = viewed;
    Pass pass{cluster[0]};
    const at::Tensor loss = looked_up(pass_on(a, seen));
    got(pass.backward(loss, {}, {.retain_graph = true}));
    EXPECT_EQ(memory_of(pass.gradient(a)), seen.memory);
    EXPECT_EQ(seen.values.defined(), viewed);
    for (int i = 0; i < 10; ++i) got(pass.backward(loss, {}, {.retain_graph = true}));
    expect_equal(pass.gradient(a).to_dense(), 11 * looked_up_gradient(), "of eleven backwards");
  }
}

TEST_F(PassMemory, OfASparseGradientOfExpandedPartsIsCopied) {
  Pass pass{cluster[0]};
  const at::Tensor loss = looked_up(Expanded::apply(a, b));
  got(pass.backward(loss, {}, {.retain_graph = true}));
  EXPECT_NE(memory_of(pass.gradient(a)), memory_of(pass.gradient(b)));
  EXPECT_TRUE(pass.gradient(a)._values().is_contiguous());
  EXPECT_TRUE(pass.gradient(b)._values().is_contiguous());
  for (int i = 0; i < 10; ++i) got(pass.backward(loss, {}, {.retain_graph = true}));
  EXPECT_DOUBLE_EQ(pass.gradient(b).to_dense().sum().item<double>(), 11 * 8 * 3 * 0.5);
}

TEST_F(PassMemory, SparseAndDenseAccumulateInEitherOrder) {
  const at::Tensor want = looked_up_gradient() + 1;
  for (const bool sparse_first : {true, false}) {
    Pass pass{cluster[0]};
    const at::Tensor sparse = looked_up(a), dense = a.sum();
    got(pass.backward(sparse_first ? sparse : dense, {}, {.retain_graph = true}));
    got(pass.backward(sparse_first ? dense : sparse));
    expect_equal(pass.gradient(a), want, sparse_first ? "sparse first" : "dense first");
  }
}

// An embedding that lives on another worker; its gradient is sparse.
struct Embedding {
  explicit Embedding(at::Tensor initial)
      : table(torch::nn::EmbeddingBagImpl(torch::nn::EmbeddingBagOptions(initial.size(0), initial.size(1))
                                              .mode(torch::kSum)
                                              .sparse(true))) {
    torch::NoGradGuard no_grad;
    table.weight = initial.clone().requires_grad_();
  }
  at::Tensor forward(at::Tensor ids, at::Tensor offsets, at::Tensor weights) {
    return table.forward(ids, offsets, weights);
  }
  at::Tensor gradient(rpc::CallContext& call, PassId pass) {
    return AutogradLayer::of(*call.host())->find(pass)->gradient(table.weight);
  }
  using Service = rpc::Service<"test.embedding", rpc::Constructor<at::Tensor>,
                               rpc::Method<"forward", &Embedding::forward>,
                               rpc::Method<"gradient", &Embedding::gradient>>;
  torch::nn::EmbeddingBagImpl table;
};

TEST(PassEmbedding, SparseGradientsAccumulateOnAnotherWorker) {
  torch::manual_seed(5);
  Cluster cluster(2);
  cluster[1].allow_create<Embedding>();
  const at::Tensor initial = torch::rand({16, 16}, at::kDouble),
                   ids = torch::tensor({1, 2, 4, 5, 4, 3, 2, 9}), offsets = torch::tensor({0, 4});
  const at::Tensor weights = torch::rand({8}, at::kDouble).requires_grad_();
  const auto there = rref::create<Embedding>(cluster.peer(0, 1), initial);
  Pass pass{cluster[0]};
  const at::Tensor loss = got(there.call<&Embedding::forward>(pass, ids, offsets, weights)).sum();
  got(pass.backward(loss, {}, {.retain_graph = true}));
  got(pass.backward(loss));

  Embedding here{initial};
  const at::Tensor local_weights = weights.detach().clone().requires_grad_();
  const at::Tensor local = here.forward(ids, offsets, local_weights).sum();
  local.backward({}, true);
  local.backward();
  expect_gradient(got(there.call<&Embedding::gradient>(pass.id())), here.table.weight.grad(), "the table");
  expect_gradient(pass.gradient(weights), local_weights.grad(), "the weights of its rows");
}

}  // namespace
}  // namespace weft::dist_autograd::test::pass_own_gradients_test
