// Compares a backward in two parts (ExecutorOptions::defer_weights) with one backward of LibTorch's engine.
// `x` is the tensor that a pipeline stage received. For LibTorch's engine it is a leaf. For the executor it
// has an exit node, which sends its gradient elsewhere.
#include <torch/torch.h>

#include <weft/dist_autograd/activation_checkpoint.h>
#include <weft/rpc/core/error.h>

#include "tests/dist_autograd/engine/support.h"

#include <ATen/record_function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <thread>

namespace weft::dist_autograd::engine_parts_test {
namespace {

using rpc::ErrorKind;
using testing::expect_identical;
using testing::leaf;
using testing::MapSink;
using testing::numbers;
using testing::source_of;
using torch::autograd::variable_list;

constexpr ExecutorOptions in_parts{.defer_weights = true};

struct Exit : torch::autograd::Node {
  variable_list apply(variable_list&& gradients) override {
    ++runs;
    gradient = gradients.at(0);
    return {};
  }
  std::string name() const override { return "Exit"; }
  at::Tensor gradient;
  int runs = 0;
};

struct Input {
  explicit Input(const at::Tensor& value) : x(value.clone()), exit(make_node<Exit>()) {
    torch::autograd::impl::set_gradient_edge(x, torch::autograd::Edge(exit, exit->add_input_metadata(x)));
  }
  at::Tensor x;
  decltype(make_node<Exit>()) exit;
};

struct Built {
  at::Tensor root;
  variable_list leaves;
};
using Program = std::function<Built(const at::Tensor& x)>;

Built of_module(torch::nn::Module& module, const at::Tensor& out) {
  return {out.square().sum(), module.parameters()};
}

// Runs the first part of a backward.
void run_inputs(NodeExecutor& executor, const at::Tensor& root) {
  executor.add_root(root);
  executor.plan();
  executor.run();
}

// Runs both engines over `program`. The results are bitwise equal, leaves get no gradient in the first part,
// and the gradient of x is complete after it.
void expect_as_whole(const Program& program, const at::Tensor& value = numbers({4, 6}, 1)) {
  at::Tensor x = value.clone().requires_grad_();
  const Built whole = program(x);
  torch::autograd::backward({whole.root}, {at::Tensor()});

  const Input input(value);
  const Built built = program(input.x);
  MapSink sink;
  NodeExecutor executor(sink, in_parts);
  run_inputs(executor, built.root);
  EXPECT_TRUE(executor.inputs_complete());
  EXPECT_FALSE(executor.complete());
  EXPECT_EQ(sink.calls, 0);
  EXPECT_EQ(input.exit->runs, 1);
  expect_identical(input.exit->gradient, x.grad(), "x");
  executor.run_weights();
  EXPECT_TRUE(executor.complete());
  EXPECT_EQ(input.exit->runs, 1);
  for (std::size_t i = 0; i < whole.leaves.size(); ++i)
    expect_identical(sink[built.leaves[i]], whole.leaves[i].grad(), "leaf " + std::to_string(i));
}

// --- Programs; each build starts with the same values ---

std::shared_ptr<torch::nn::SequentialImpl> mlp() {
  torch::manual_seed(7);
  auto made = std::make_shared<torch::nn::SequentialImpl>(torch::nn::Linear(6, 8), torch::nn::Tanh(),
                                                          torch::nn::Linear(8, 5), torch::nn::ReLU(),
                                                          torch::nn::Linear(5, 3));
  made->to(at::kDouble);
  return made;
}

Built two_layers(const at::Tensor& x) {
  const auto w1 = leaf({6, 6}, 2), w2 = leaf({6, 6}, 3);
  return {x.mm(w1).tanh().mm(w2).sum(), {w1, w2}};
}

TEST(EngineParts, LinearLayers) {
  expect_as_whole([](const at::Tensor& x) {
    const auto module = mlp();
    return of_module(*module, module->forward(x));
  });
}

TEST(EngineParts, ConvolutionsAndBatchNorm) {
  for (const auto type : {at::kDouble, at::kFloat}) {
    expect_as_whole(
        [type](const at::Tensor& x) {
          torch::manual_seed(8);
          torch::nn::Sequential module(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 3).padding(1)),
                                       torch::nn::BatchNorm2d(4), torch::nn::ReLU(),
                                       torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 2, 3).bias(false)));
          module->to(type);
          return of_module(*module, module->forward(x));
        },
        numbers({2, 3, 8, 8}, 1).to(type));
  }
}

TEST(EngineParts, EmbeddingsDenseAndSparse) {
  for (const bool sparse : {false, true}) {
    expect_as_whole([sparse](const at::Tensor& x) {
      torch::manual_seed(10);
      torch::nn::Embedding table(torch::nn::EmbeddingOptions(9, 6).sparse(sparse));
      table->to(at::kDouble);
      const auto rows = table->forward(at::tensor({1, 5, 5, 8}, at::kLong));
      return Built{(x * rows).sum() + rows.sin().sum(), table->parameters()};
    });
  }
}

TEST(EngineParts, Attention) {
  expect_as_whole(
      [](const at::Tensor& x) {
        torch::manual_seed(11);
        torch::nn::TransformerEncoderLayer block(
            torch::nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(16).dropout(0));
        block->to(at::kDouble);
        return of_module(*block, block->forward(x));
      },
      numbers({5, 2, 8}, 1));
}

TEST(EngineParts, Recurrent) {
  expect_as_whole(
      [](const at::Tensor& x) {
        torch::manual_seed(12);
        torch::nn::LSTM layer(torch::nn::LSTMOptions(6, 5).num_layers(2));
        layer->to(at::kDouble);
        return of_module(*layer, std::get<0>(layer->forward(x)));
      },
      numbers({3, 2, 6}, 1));
}

struct Product : torch::autograd::Function<Product> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& a,
                            const at::Tensor& b) {
    context->save_for_backward({a, b});
    return a.mm(b);
  }
  static variable_list backward(torch::autograd::AutogradContext* context, const variable_list& gradients) {
    ++runs;
    const auto saved = context->get_saved_variables();
    return {gradients[0].mm(saved[1].t()), saved[0].t().mm(gradients[0])};
  }
  static inline int runs = 0;
};

TEST(EngineParts, ACustomFunctionRunsOnce) {
  Product::runs = 0;
  expect_as_whole([](const at::Tensor& x) {
    const auto w = leaf({6, 6}, 2), v = leaf({6, 6}, 3);
    return Built{Product::apply(x.mm(v).tanh(), w).sin().sum(), {w, v}};
  });
  EXPECT_EQ(Product::runs, 2) << "one in each engine";
}

TEST(EngineParts, HooksRunOnceOnTheFullGradient) {
  int tensor_hooks = 0, leaf_hooks = 0;
  expect_as_whole([&](const at::Tensor& x) {
    const auto w = leaf({6, 6}, 2);
    at::Tensor h = x.mm(w), wt = w.t();
    h.register_hook([&](at::Tensor g) { return ++tensor_hooks, g * 2; });
    wt.register_hook([&](at::Tensor g) { return ++tensor_hooks, g * 3; });
    w.register_hook([&](at::Tensor g) { return ++leaf_hooks, g * 5; });
    return Built{(h.tanh() * h.mm(wt)).sum(), {w}};
  });
  EXPECT_EQ(tensor_hooks, 4);
  EXPECT_EQ(leaf_hooks, 2);
}

TEST(EngineParts, RetainedGradientsAreWrittenOnce) {
  std::vector<at::Tensor> kept;
  expect_as_whole([&](const at::Tensor& x) {
    const auto w = leaf({6, 6}, 2);
    const auto h = x.mm(w), n = w.exp();
    h.retain_grad();
    n.retain_grad();
    kept.insert(kept.end(), {h, n});
    return Built{h.mm(n).sum(), {w}};
  });
  expect_identical(kept[2].grad(), kept[0].grad(), "at the boundary");
  expect_identical(kept[3].grad(), kept[1].grad(), "in the weight part");
}

struct Doubling : torch::autograd::FunctionPostHook {
  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    variable_list twice;
    for (const auto& g : outputs) {
      EXPECT_TRUE(g.defined());
      twice.push_back(g * 2);
    }
    return twice;
  }
};

TEST(EngineParts, APostHookSeesAllGradientsOfItsNode) {
  expect_as_whole([](const at::Tensor& x) {
    const auto w = leaf({6, 6}, 2);
    const auto h = x.mm(w);
    h.grad_fn()->add_post_hook(std::make_unique<Doubling>());
    return Built{h.tanh().sum(), {w}};
  });
}

TEST(EngineParts, Checkpoints) {
  expect_as_whole([](const at::Tensor& x) {
    const auto module = mlp();
    const auto run = [module](const variable_list& in) { return variable_list{module->forward(in[0])}; };
    const auto h = activation_checkpoint(run, {x}, module->parameters())[0];
    return of_module(*module, h);
  });
}

TEST(EngineParts, ViewsWrittenInPlace) {
  expect_as_whole([](const at::Tensor& x) {
    const auto w = leaf({6}, 2), v = leaf({4, 6}, 3);
    at::Tensor h = x * 2;
    h[1].mul_(w);
    h.narrow(0, 2, 2).add_(v.narrow(0, 0, 2));
    return Built{h.sin().sum(), {w, v}};
  });
}

TEST(EngineParts, ResultsThatAreNotUsed) {
  expect_as_whole([](const at::Tensor& x) {
    const auto w = leaf({6, 9}, 2);
    const auto parts = x.mm(w).chunk(3, 1);
    return Built{(parts[0] * parts[2]).sum(), {w}};
  });
}

// Programs of random operators over x and three leaves, with exits, hooks and custom functions.
TEST(EngineParts, RandomGraphs) {
  for (unsigned seed = 1; seed <= 200 && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    expect_as_whole(
        [seed](const at::Tensor& x) {
          std::mt19937 random(seed);
          const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
          const variable_list leaves{leaf({4, 4}, 2), leaf({4, 4}, 3), leaf({4, 4}, 4)};
          variable_list values = leaves;
          values.push_back(x);
          for (std::size_t steps = 4 + below(12); steps > 0; --steps) {
            const at::Tensor a = values[below(values.size())], b = values[below(values.size())];
            const at::Tensor out = [&] {
              switch (below(6)) {
                case 0:
                  return a.mm(b).tanh();
                case 1:
                  return a * b.sigmoid();
                case 2:
                  return at::addmm(a, b, a).sin();
                case 3:
                  return Product::apply(a, b).tanh();
                case 4:
                  return at::layer_norm(a, {4}, b[0]);
                default:
                  return a - b * 0.5;
              }
            }();
            if (below(4) == 0) out.register_hook([](at::Tensor g) { return g * 1.5; });
            values.push_back(out);
          }
          at::Tensor loss = x.mm(leaves[0]).sum();  // the gradient of x is not undefined
          for (const auto& value : values) loss = loss + value.square().sum();
          return Built{loss, leaves};
        },
        numbers({4, 4}, 1));
  }
}

// --- The work of each part, and the tensors that it keeps ---

// Counts the operators that run under the thread-local state of this thread, which an executor copies when it
// is created.
class Counted {
 public:
  Counted()
      : handle_(at::addThreadLocalCallback(
            at::RecordFunctionCallback(&count).scopes({at::RecordScope::FUNCTION}))) {
    counts.clear();
  }
  ~Counted() { at::removeCallback(handle_); }
  // Returns the number of runs since the last call.
  int operator()(const std::string& name) const { return std::exchange(counts[name], 0); }

 private:
  static std::unique_ptr<at::ObserverContext> count(const at::RecordFunction& function) {
    ++counts[function.name()];
    return nullptr;
  }
  static thread_local inline std::map<std::string, int> counts;
  at::CallbackHandle handle_;
};

TEST(EngineParts, EachGradientIsComputedOnceInItsPart) {
  const Input input(numbers({4, 6}, 1));
  const auto module = mlp();
  const Built built = of_module(*module, module->forward(input.x));
  MapSink sink;
  const Counted counted;
  NodeExecutor executor(sink, in_parts);
  run_inputs(executor, built.root);
  EXPECT_EQ(counted("aten::mm"), 3) << "the inputs of three layers";
  EXPECT_EQ(counted("aten::tanh_backward"), 1);
  EXPECT_EQ(counted("aten::sum"), 0) << "no bias";
  executor.run_weights();
  EXPECT_EQ(counted("aten::mm"), 3) << "three weights";
  EXPECT_EQ(counted("aten::tanh_backward"), 0);
  EXPECT_EQ(counted("aten::sum"), 3) << "three biases";
}

TEST(EngineParts, ConvolutionsComputeOneSideInEachPart) {
  const Input input(numbers({2, 3, 8, 8}, 1));
  torch::nn::Conv2d module(3, 4, 3);
  module->to(at::kDouble);
  MapSink sink;
  const Counted counted;
  NodeExecutor executor(sink, in_parts);
  run_inputs(executor, module->forward(input.x).sum());
  EXPECT_TRUE(input.exit->gradient.defined());
  EXPECT_EQ(counted("aten::convolution_backward"), 1);
  executor.run_weights();
  EXPECT_EQ(counted("aten::convolution_backward"), 1);
  EXPECT_EQ(sink.calls, 2);
}

// The graph has only leaves. A first stage of a pipeline has no input part.
TEST(EngineParts, WithoutAnExitAllNodesAreDeferred) {
  const auto w = leaf({6, 6}, 2), x = leaf({4, 6}, 1);
  MapSink sink;
  const Counted counted;
  NodeExecutor executor(sink, in_parts);
  executor.add_root(x.mm(w).tanh().sum());
  executor.plan();
  counted("aten::mm");
  executor.run();
  EXPECT_EQ(counted("aten::mm"), 0);
  EXPECT_TRUE(executor.inputs_complete());
  EXPECT_FALSE(executor.complete());
  executor.run_weights();
  EXPECT_TRUE(executor.complete());
  EXPECT_EQ(sink.calls, 2);
}

TEST(EngineParts, WithoutLeavesNoNodeIsDeferred) {
  const Input input(numbers({4, 6}, 1));
  MapSink sink;
  NodeExecutor executor(sink, in_parts);
  run_inputs(executor, input.x.sin().sum());
  EXPECT_TRUE(executor.complete());
  executor.run_weights();
}

TEST(EngineParts, SavedTensorsAreFreedOnceTheWeightPartHasRun) {
  const Input input(numbers({4, 6}, 1));
  const auto w = leaf({6, 6}, 2);
  at::Tensor h = input.x.tanh();
  const auto saved = h.storage().getWeakStorageImpl();
  const at::Tensor root = h.mm(w).sum();
  h.reset();
  MapSink sink;
  NodeExecutor executor(sink, in_parts);
  run_inputs(executor, root);
  EXPECT_FALSE(saved.expired());
  executor.run_weights();
  EXPECT_TRUE(saved.expired()) << "though the graph is still there";
}

// --- Interleaved parts ---

// Three sources share one stage. Weight parts may run between the input parts.
TEST(EngineParts, WeightsMayRunBetweenDeliveries) {
  for (const bool between : {false, true}) {
    at::Tensor x = numbers({4, 6}, 1).requires_grad_();
    auto w = leaf({6, 6}, 2);
    variable_list outs;
    const auto forward = [&](const at::Tensor& in) {
      outs.clear();
      for (int i = 0; i < 3; ++i) outs.push_back((in * (i + 1)).mm(w).tanh());
    };
    forward(x);
    torch::autograd::backward(outs, {numbers({4, 6}, 5), numbers({4, 6}, 6), numbers({4, 6}, 7)});
    const at::Tensor of_w = w.grad(), of_x = x.grad();

    w = leaf({6, 6}, 2);
    const Input input(numbers({4, 6}, 1));
    forward(input.x);
    MapSink sink;
    NodeExecutor executor(sink, in_parts);
    std::vector<NodePtr> sources;
    for (int i = 0; i < 3; ++i) sources.push_back(source_of("source", {outs[static_cast<std::size_t>(i)]}));
    for (const auto& source : sources) executor.expect(source);
    executor.plan();
    for (const int i : {2, 1, 0}) {  // in the order of one backward
      executor.deliver(sources[static_cast<std::size_t>(i)],
                       {numbers({4, 6}, 5 + static_cast<std::uint64_t>(i))});
      executor.run();
      EXPECT_EQ(executor.inputs_complete(), i == 0);
      if (between) executor.run_weights();
      EXPECT_EQ(sink.calls, between && i == 0 ? 1 : 0) << "w is complete with the last one";
    }
    executor.run_weights();
    EXPECT_TRUE(executor.complete());
    expect_identical(input.exit->gradient, of_x, "x");
    expect_identical(sink[w], of_w, "w");
  }
}

TEST(EngineParts, AnAbandonedSourceDoesNotBlockOtherNodes) {
  const auto w = leaf({6, 6}, 2), v = leaf({6, 6}, 3);
  const Input input(numbers({4, 6}, 1));
  const auto scaled = w * 2, first = input.x.mm(scaled), second = scaled.mm(v);
  const NodePtr one = source_of("one", {first}), two = source_of("two", {second});
  MapSink sink;
  NodeExecutor executor(sink, in_parts);
  executor.expect(one);
  executor.expect(two);
  executor.plan();
  executor.deliver(one, {numbers({4, 6}, 4)});
  executor.run();
  EXPECT_TRUE(executor.waiting()) << "the product by 2, of the weight part, waits for the second source";
  executor.run_weights();
  EXPECT_EQ(sink.calls, 0);
  executor.abandon(two);
  EXPECT_FALSE(executor.waiting());
  executor.run();
  executor.run_weights();
  EXPECT_TRUE(executor.complete());
  expect_identical(sink[w], numbers({4, 6}, 1).t().mm(numbers({4, 6}, 4)) * 2, "w");
  EXPECT_FALSE(sink[v].defined());
}

TEST(EngineParts, GradIsWrittenInTheWeightPart) {
  const Input input(numbers({4, 6}, 1));
  const Built built = two_layers(input.x);
  MapSink sink;
  NodeExecutor executor(sink, {.write_grad = true, .defer_weights = true});
  run_inputs(executor, built.root);
  EXPECT_FALSE(built.leaves[0].grad().defined());
  executor.run_weights();
  expect_identical(built.leaves[0].grad(), sink[built.leaves[0]], "w1");
}

TEST(EngineParts, TwoThreadsShareAGraph) {
  const Input input(numbers({16, 6}, 1));
  const auto w1 = leaf({6, 6}, 2), w2 = leaf({6, 6}, 3);
  const at::Tensor root = at::addmm(w1[0], input.x.tanh(), w2).sin().mm(w1).sum();
  const auto run = [&](MapSink& sink, bool defer) {
    NodeExecutor executor(sink, {.retain_graph = true, .defer_weights = defer});
    run_inputs(executor, root);
    executor.run_weights();
  };
  MapSink whole;
  run(whole, false);
  std::vector<std::thread> threads;
  std::atomic<int> different = 0;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, defer = t != 0] {
      for (int i = 0; i < 200; ++i) {
        MapSink sink;
        run(sink, defer);
        if (!sink[w1].equal(whole[w1]) || !sink[w2].equal(whole[w2])) ++different;
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(different, 0);
}

// --- Faults ---

ErrorKind kind_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const rpc::Error& error) {
    return error.kind();
  }
  ADD_FAILURE() << "no error";
  return ErrorKind::internal;
}

TEST(EngineParts, AWeightChangedBetweenThePartsGivesTheErrorOfLibTorch) {
  const Input input(numbers({4, 6}, 1));
  at::Tensor h = input.x.tanh();
  MapSink sink;
  NodeExecutor executor(sink, in_parts);
  run_inputs(executor, h.mm(leaf({6, 6}, 2)).sum());
  {
    at::NoGradGuard no_grad;
    h.add_(1);
  }
  EXPECT_NE(testing::message_of([&] { executor.run_weights(); }).find("modified by an inplace operation"),
            std::string::npos);
  EXPECT_TRUE(executor.failed());
  EXPECT_EQ(kind_of([&] { executor.run_weights(); }), ErrorKind::failed_precondition);
}

TEST(EngineParts, AnExceptionInTheWeightPartIsRethrown) {
  const Input input(numbers({4, 6}, 1));
  const auto w = leaf({6, 6}, 2);
  MapSink sink;
  NodeExecutor executor(sink, in_parts);
  run_inputs(executor, input.x.mm(testing::Fail::apply(w)).sum());
  EXPECT_TRUE(input.exit->gradient.defined());
  EXPECT_EQ(testing::message_of([&] { executor.run_weights(); }), "no luck");
  EXPECT_TRUE(executor.failed());
}

TEST(EngineParts, WeightsRunOnlyAfterThePlan) {
  MapSink sink;
  NodeExecutor executor(sink, in_parts);
  EXPECT_EQ(kind_of([&] { executor.run_weights(); }), ErrorKind::failed_precondition);
}

}  // namespace
}  // namespace weft::dist_autograd::engine_parts_test
