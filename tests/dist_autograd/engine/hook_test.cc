// Hooks of every kind, compared with LibTorch's engine: how often they run, in which order, and on which
// gradient.
#include <torch/torch.h>

#include "tests/dist_autograd/engine/support.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <random>

namespace weft::dist_autograd::engine_hook_test {
namespace {

using testing::expect_identical;
using testing::Graph;
using testing::leaf;
using testing::numbers;
using torch::autograd::variable_list;

// The gradients that hooks received, in order.
using Log = std::vector<std::pair<std::string, variable_list>>;

void note(Log& log, const std::string& name, const variable_list& seen) {
  variable_list copies;
  for (const auto& tensor : seen) copies.push_back(tensor.defined() ? tensor.detach().clone() : tensor);
  log.emplace_back(name, std::move(copies));
}

// Multiplies the gradient that it received. If a hook runs twice or too late, the gradient is also wrong.
struct PreHook : torch::autograd::FunctionPreHook {
  PreHook(Log& log, std::string name, double factor) : log(log), name(std::move(name)), factor(factor) {}
  variable_list operator()(const variable_list& gradients) override {
    note(log, name, gradients);
    variable_list scaled;
    for (const auto& g : gradients) scaled.push_back(g.defined() ? g * factor : g);
    return scaled;
  }
  Log& log;
  std::string name;
  double factor;
};

struct PostHook : torch::autograd::FunctionPostHook {
  PostHook(Log& log, std::string name, double factor) : log(log), name(std::move(name)), factor(factor) {}
  variable_list operator()(const variable_list& outputs, const variable_list& inputs) override {
    note(log, name + " outputs", outputs);
    note(log, name + " inputs", inputs);
    variable_list scaled;
    for (const auto& g : outputs) scaled.push_back(g.defined() ? g * factor : g);
    return scaled;
  }
  Log& log;
  std::string name;
  double factor;
};

struct PostAccumulateHook : torch::autograd::PostAccumulateGradHook {
  explicit PostAccumulateHook(std::function<void(const at::Tensor&)> act) : act(std::move(act)) {}
  void operator()(const at::Tensor& variable) override { act(variable); }
  std::function<void(const at::Tensor&)> act;
};

void watch(const at::Tensor& tensor, Log& log, const std::string& name, double factor) {
  tensor.register_hook([&log, name, factor](const at::Tensor& gradient) {
    note(log, name, {gradient});
    return gradient * factor;
  });
}

auto accumulator(const at::Tensor& leaf) { return torch::autograd::impl::gradient_edge(leaf).function; }

using Hooked = std::function<Graph(Log&)>;

void expect_same_hooks(const Hooked& program, ExecutorOptions options = {}) {
  Log expected_log, actual_log;
  const Graph expected = program(expected_log);
  testing::oracle_backward(expected, options);
  const Graph actual = program(actual_log);
  const auto sink = testing::own_backward(actual, options);

  ASSERT_FALSE(expected_log.empty()) << "the program has no hook";
  ASSERT_EQ(actual_log.size(), expected_log.size());
  for (std::size_t i = 0; i < expected_log.size(); ++i) {
    const auto& [name, seen] = expected_log[i];
    ASSERT_EQ(actual_log[i].first, name) << "hook " << i;
    ASSERT_EQ(actual_log[i].second.size(), seen.size()) << name;
    for (std::size_t k = 0; k < seen.size(); ++k) expect_identical(actual_log[i].second[k], seen[k], name);
  }
  for (std::size_t i = 0; i < expected.leaves.size(); ++i) {
    expect_identical(sink[actual.leaves[i]], expected.leaves[i].grad(), "leaf " + std::to_string(i));
    expected.leaves[i].mutable_grad().reset();  // with create_graph, .grad and its graph hold each other
  }
}

// Graphs in which many nodes are ready at a time.
TEST(EngineHook, NodesRunInTheOrderOfLibTorchsEngine) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    expect_same_hooks([seed](Log& log) {
      std::mt19937 random(seed);
      const auto pick = [&](const variable_list& values) { return values[random() % values.size()]; };
      const auto x = leaf({3, 3}, 1), y = leaf({3, 3}, 2);
      variable_list values{x.sin(), y.cos(), x.tanh()};
      for (int i = 0; i < 25; ++i) {
        const at::Tensor a = pick(values), b = pick(values);
        const auto kind = random() % 4;
        const at::Tensor next = kind == 0 ? a.sin() : kind == 1 ? a * b : kind == 2 ? a + b : a.mm(b).tanh();
        next.grad_fn()->add_pre_hook(std::make_unique<PreHook>(log, std::to_string(i), 1.0));
        values.push_back(next);
      }
      return Graph{{values.back(), pick(values), pick(values)},
                   {numbers({3, 3}, 3), numbers({3, 3}, 4), numbers({3, 3}, 5)},
                   {x, y}};
    });
  }
}

TEST(EngineHook, TensorHooksSeeTheFullGradientOnce) {
  expect_same_hooks([](Log& log) {
    auto w = leaf({6, 6}, 1);
    auto h = numbers({6, 6}, 2).mm(w).tanh();
    watch(h, log, "h", 2.0);
    watch(h, log, "h again", 0.5);
    auto y = h.mm(w).sin() + h.mm(w) + h;
    watch(y, log, "y", 1.5);
    return Graph{{y, h}, {numbers({6, 6}, 3), numbers({6, 6}, 4)}, {w}};
  });
}

TEST(EngineHook, LeafHooks) {
  expect_same_hooks([](Log& log) {
    auto w = leaf({6, 6}, 1), b = leaf({6}, 2);
    watch(w, log, "w", 3.0);
    watch(w, log, "w again", 0.25);
    watch(b, log, "b", 0.5);
    auto y = torch::addmm(b, torch::addmm(b, numbers({6, 6}, 3), w), w);
    return Graph{{y.sum()}, {{}}, {w, b}};
  });
}

TEST(EngineHook, AHookThatReturnsNothingChangesNothing) {
  expect_same_hooks([](Log& log) {
    auto w = leaf({3}, 1);
    auto h = w.sin();
    h.register_hook([&log](const at::Tensor& gradient) { note(log, "h", {gradient}); });
    w.register_hook([&log](const at::Tensor& gradient) { note(log, "w", {gradient}); });
    return Graph{{h.cos().sum()}, {{}}, {w}};
  });
}

TEST(EngineHook, HooksOnOneOutputOfSeveral) {
  expect_same_hooks([](Log& log) {
    auto x = leaf({3, 4}, 1);
    auto parts = x.sin().unbind(0);
    watch(parts[1], log, "part 1", 2.0);
    watch(parts[0], log, "part 0", 3.0);
    return Graph{{(parts[0] * parts[1]).sum()}, {{}}, {x}};  // part 2 gets no gradient
  });
}

TEST(EngineHook, RetainGradSeesTheResultOfTensorHooks) {
  std::vector<at::Tensor> retained;
  for (bool own : {false, true}) {
    Log log;
    auto w = leaf({5, 5}, 1);
    auto h = numbers({5, 5}, 2).mm(w).tanh();
    h.retain_grad();  // first, yet it runs after the tensor hook
    watch(h, log, "h", 2.0);
    h.grad_fn()->add_pre_hook(std::make_unique<PreHook>(log, "pre", 7.0));
    auto parts = h.mm(w).unbind(0);
    parts[1].retain_grad();
    parts[3].retain_grad();  // gets none
    Graph graph{{parts[1].sum() + h.sum()}, {{}}, {w}};
    if (own) {
      testing::own_backward(graph);
    } else {
      testing::oracle_backward(graph);
    }
    for (const auto& tensor : {h, parts[1], parts[3]}) retained.push_back(tensor.grad());
  }
  expect_identical(retained[3], retained[0], "h.grad");
  expect_identical(retained[4], retained[1], "parts[1].grad");
  expect_identical(retained[5], retained[2], "parts[3].grad");
  EXPECT_TRUE(retained[0].defined());
}

TEST(EngineHook, NodeHooksBeforeAndAfter) {
  expect_same_hooks([](Log& log) {
    auto w = leaf({4, 4}, 1);
    auto h = numbers({4, 4}, 2).mm(w);
    auto y = h.sin() + h.cos() * w;
    for (const auto& node : {h.grad_fn(), y.grad_fn()}) {
      node->add_post_hook(std::make_unique<PostHook>(log, "post", 0.5));
      node->add_post_hook(std::make_unique<PostHook>(log, "post again", 3.0));
      node->add_pre_hook(std::make_unique<PreHook>(log, "pre", 2.0));
      node->add_pre_hook(std::make_unique<PreHook>(log, "pre again", 1.25));
    }
    watch(h, log, "tensor", 5.0);
    return Graph{{y}, {numbers({4, 4}, 3)}, {w}};
  });
}

// LibTorch's DDP starts its reduction in a post-hook of AccumulateGrad. The hook must run after the sink has
// the gradient.
TEST(EngineHook, LeafNodeHooksBeforeAndAfter) {
  for (bool write_grad : {false, true}) {
    expect_same_hooks(
        [](Log& log) {
          auto w = leaf({4, 4}, 1);
          auto node = accumulator(w);
          node->add_pre_hook(std::make_unique<PreHook>(log, "pre", 2.0));
          node->add_post_hook(std::make_unique<PostHook>(log, "post", 1.0));
          watch(w, log, "tensor", 3.0);
          auto y = numbers({4, 4}, 2).mm(w).mm(w);
          return Graph{{y}, {numbers({4, 4}, 3)}, {w}};
        },
        {.write_grad = write_grad});
  }
}

// A reducer or an optimizer in a hook of a leaf uses the gradient of the pass.
TEST(EngineHook, HooksOfALeafFindTheGradientInTheSink) {
  struct Look : torch::autograd::FunctionPostHook {
    explicit Look(std::function<void()> look) : look(std::move(look)) {}
    variable_list operator()(const variable_list& outputs, const variable_list&) override {
      look();
      return outputs;
    }
    std::function<void()> look;
  };
  for (bool write_grad : {false, true}) {
    auto w = leaf({4}, 1);
    auto y = w.sin();
    testing::MapSink sink;
    int found = 0;
    auto look = [&] { found += sink[w].defined(); };
    accumulator(w)->add_post_hook(std::make_unique<Look>(look));
    torch::autograd::impl::set_post_acc_grad_hooks(
        w, std::make_unique<PostAccumulateHook>([&](const at::Tensor&) { look(); }));
    NodeExecutor executor(sink, {.write_grad = write_grad});
    executor.add_root(y, numbers({4}, 2));
    executor.plan();
    executor.run();
    EXPECT_EQ(found, write_grad ? 2 : 1);
  }
}

TEST(EngineHook, PostAccumulateHooksRunOnlyWhereGradIsWritten) {
  auto program = [](Log& log) {
    auto w = leaf({4, 4}, 1);
    auto look = [&log](const at::Tensor& variable) { note(log, "post accumulate", {variable.grad()}); };
    torch::autograd::impl::set_post_acc_grad_hooks(w, std::make_unique<PostAccumulateHook>(look));
    watch(w, log, "tensor", 3.0);
    return Graph{{w.sin().mm(w)}, {numbers({4, 4}, 2)}, {w}};
  };
  expect_same_hooks(program, {.write_grad = true});
  Log log;
  testing::own_backward(program(log));
  ASSERT_EQ(log.size(), 1u);
  EXPECT_EQ(log[0].first, "tensor");
}

TEST(EngineHook, ANodeWithoutGradientStillRunsItsHooks) {
  // The chain of the second output gets no gradient. Its nodes nevertheless run, on undefined gradients.
  struct Drop : torch::autograd::Function<Drop> {
    static variable_list forward(torch::autograd::AutogradContext*, const at::Tensor& a,
                                 const at::Tensor& b) {
      return {a + b};
    }
    static variable_list backward(torch::autograd::AutogradContext*, const variable_list& gradients) {
      return {gradients[0], at::Tensor()};
    }
  };
  expect_same_hooks([](Log& log) {
    auto x = leaf({4}, 1), z = leaf({4}, 2);
    auto dropped = z.sin();
    dropped.grad_fn()->add_pre_hook(std::make_unique<PreHook>(log, "pre", 2.0));
    dropped.grad_fn()->add_post_hook(std::make_unique<PostHook>(log, "post", 2.0));
    accumulator(z)->add_pre_hook(std::make_unique<PreHook>(log, "leaf pre", 2.0));
    auto keep = accumulator(z);
    keep->add_post_hook(std::make_unique<PostHook>(log, "leaf post", 2.0));
    auto y = Drop::apply(x, dropped)[0];
    return Graph{{y.sum()}, {{}}, {x, z}};
  });
}

// Runs LibTorch's engine with a parameter, as checkpointing does.
struct Recompute : torch::autograd::FunctionPreHook, torch::autograd::FunctionPostHook {
  explicit Recompute(at::Tensor w) : parameter(std::move(w)) {}
  variable_list operator()(const variable_list& gradients) override {
    at::AutoGradMode grad(true);
    torch::autograd::backward({(parameter * parameter).sum()}, {});
    return gradients;
  }
  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    return (*this)(outputs);
  }
  at::Tensor parameter;
};

// The positions of a hook: on a tensor within the graph, on a leaf, before a node and after a node.
using Place =
    std::function<void(const at::Tensor& leaf, const at::Tensor& inner, const at::Tensor& parameter)>;
const std::vector<std::pair<std::string, Place>> places{
    {"a tensor",
     [](const at::Tensor&, const at::Tensor& inner, const at::Tensor& parameter) {
       inner.register_hook([parameter](const at::Tensor& gradient) {
         return Recompute(parameter)(variable_list{gradient})[0];
       });
     }},
    {"a leaf",
     [](const at::Tensor& leaf, const at::Tensor&, const at::Tensor& parameter) {
       leaf.register_hook([parameter](const at::Tensor& gradient) {
         return Recompute(parameter)(variable_list{gradient})[0];
       });
     }},
    {"before a node",
     [](const at::Tensor&, const at::Tensor& inner, const at::Tensor& parameter) {
       inner.grad_fn()->add_pre_hook(std::make_unique<Recompute>(parameter));
     }},
    {"after a node",
     [](const at::Tensor&, const at::Tensor& inner, const at::Tensor& parameter) {
       inner.grad_fn()->add_post_hook(std::make_unique<Recompute>(parameter));
     }},
    {"before a leaf's node",
     [](const at::Tensor& leaf, const at::Tensor&, const at::Tensor& parameter) {
       accumulator(leaf)->add_pre_hook(std::make_unique<Recompute>(parameter));
     }},
    {"after a leaf's node", [](const at::Tensor& leaf, const at::Tensor&, const at::Tensor& parameter) {
       accumulator(leaf)->add_post_hook(std::make_unique<Recompute>(parameter));
     }}};

TEST(EngineHook, ANestedBackwardInAHookThatWritesGradOfAParameterIsAnError) {
  for (const auto& [where, place] : places)
    for (const bool recorded : {false, true}) {
      SCOPED_TRACE(where + (recorded ? ", recorded" : ""));
      const auto x = leaf({4}, 1), w = leaf({4, 4}, 2);
      const auto inner = x.sin();
      place(x, inner, w);
      const auto error = testing::message_of([&] {
        testing::own_backward({{inner.sum()}, {{}}, {x}},
                              {.retain_graph = recorded, .create_graph = recorded});
      });
      EXPECT_NE(error.find("wrote .grad of a leaf of sizes [4, 4]"), std::string::npos) << error;
    }
}

TEST(EngineHook, AHookMayRunANestedBackwardOverLeavesThatItMakes) {
  for (const bool recorded : {false, true}) {
    const auto x = leaf({4}, 1);
    const auto inner = x.sin();
    inner.register_hook([](const at::Tensor& gradient) {
      const auto own = gradient.detach().clone().requires_grad_();
      at::AutoGradMode grad(true);
      torch::autograd::backward({(own * own).sum()}, {});
      return own.grad();  // twice the gradient
    });
    const auto sink = testing::own_backward({{inner.sum()}, {{}}, {x}},
                                            {.retain_graph = recorded, .create_graph = recorded});
    expect_identical(sink[x].detach(), (2 * x.cos()).detach(), "x");
  }
}

TEST(EngineHook, HooksUnderCreateGraph) {
  expect_same_hooks(
      [](Log& log) {
        auto w = leaf({4, 4}, 1);
        auto h = w.tanh();
        watch(h, log, "h", 2.0);
        watch(w, log, "w", 2.0);
        return Graph{{h.mm(w).sum()}, {{}}, {w}};
      },
      {.retain_graph = true, .create_graph = true});
}

}  // namespace
}  // namespace weft::dist_autograd::engine_hook_test
