// Custom functions, saved variables and higher orders under NodeExecutor, against LibTorch's engine.
#include <torch/torch.h>

#include "tests/dist_autograd/engine/support.h"

namespace weft::dist_autograd::engine_function_test {
namespace {

using testing::expect_as_oracle;
using testing::expect_identical;
using testing::Graph;
using testing::leaf;
using testing::message_of;
using testing::numbers;
using testing::oracle_backward;
using testing::own_backward;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

struct Scale : Function<Scale> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, double factor) {
    context->save_for_backward({x});
    context->saved_data["factor"] = factor;
    return x * x * factor;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    auto x = context->get_saved_variables()[0];
    return {gradients[0] * x * 2.0 * context->saved_data["factor"].toDouble(), at::Tensor()};
  }
};

// Has two outputs, and callers use only one of them. `seen` records whether the gradient of the other one
// consisted of zeros.
struct Split : Function<Split> {
  static inline std::vector<bool> seen;

  static variable_list forward(AutogradContext* context, const at::Tensor& x, bool materialize) {
    context->set_materialize_grads(materialize);
    return {x * 2.0, x * 3.0};
  }
  static variable_list backward(AutogradContext*, const variable_list& gradients) {
    for (const auto& g : gradients) seen.push_back(g.defined());
    at::Tensor sum;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (!gradients[i].defined()) continue;
      auto part = gradients[i] * (i == 0 ? 2.0 : 3.0);
      sum = sum.defined() ? sum + part : part;
    }
    return {sum, at::Tensor()};
  }
};

// Returns an undefined gradient.
struct Stop : Function<Stop> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& x) { return x * 2.0; }
  static variable_list backward(AutogradContext*, const variable_list&) { return {at::Tensor()}; }
};

// Computes its gradient with LibTorch's engine, as checkpointing does.
struct Reentrant : Function<Reentrant> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& w) {
    context->save_for_backward({x, w});
    at::AutoGradMode no_grad(false);
    return x.mm(w).tanh();
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    auto saved = context->get_saved_variables();
    auto x = saved[0].detach().requires_grad_(), w = saved[1].detach().requires_grad_();
    at::Tensor y;
    {
      at::AutoGradMode grad(true);
      y = x.mm(w).tanh();
    }
    torch::autograd::backward({y}, {gradients[0]});
    return {x.grad(), w.grad()};
  }
};

// Recomputes its forward with a parameter that is not one of its inputs. In a pass the parameter's gradient
// is lost, because the gradients of a pass are not in `.grad`.
struct Checkpoint : Function<Checkpoint> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, std::int64_t parameter) {
    context->save_for_backward({x});
    context->saved_data["parameter"] = parameter;
    at::AutoGradMode no_grad(false);
    return x.mm(*reinterpret_cast<const at::Tensor*>(parameter));
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto x = context->get_saved_variables()[0].detach().requires_grad_();
    at::Tensor y;
    {
      at::AutoGradMode grad(true);
      y = x.mm(*reinterpret_cast<const at::Tensor*>(context->saved_data["parameter"].toInt()));
    }
    torch::autograd::backward({y}, {gradients[0]});
    return {x.grad(), {}};
  }
};

// Has the parameter as an input, and returns its gradient.
struct CheckpointOfInputs : Function<CheckpointOfInputs> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& w) {
    context->save_for_backward({x, w});
    at::AutoGradMode no_grad(false);
    return x.mm(w);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const auto x = saved[0].detach().requires_grad_();
    at::AutoGradMode grad(true);
    return torch::autograd::grad({x.mm(saved[1])}, {x, saved[1]}, {gradients[0]});
  }
};

TEST(EngineFunction, MaterializedAndUndefinedGradients) {
  for (bool materialize : {true, false}) {
    for (int used : {0, 1}) {
      auto program = [=] {
        auto x = leaf({4}, 1);
        auto parts = Split::apply(x.sin(), materialize);
        return Graph{{parts[used].sum()}, {{}}, {x}};
      };
      Split::seen.clear();
      oracle_backward(program());
      const auto expected = Split::seen;
      Split::seen.clear();
      own_backward(program());
      EXPECT_EQ(Split::seen, expected);
      ASSERT_EQ(expected.size(), 2u);
      EXPECT_EQ(expected[1 - used], materialize);
      expect_as_oracle(program);
    }
  }
}

TEST(EngineFunction, UndefinedGradientsReachOrdinaryNodes) {
  expect_as_oracle([] {
    auto x = leaf({4, 4}, 1), dead = leaf({4, 4}, 2);
    // Every node after Stop runs on undefined gradients. x also gets a defined gradient from another node.
    auto stopped = Stop::apply(dead.mm(x).sin().sum(0).expand({4, 4}).contiguous());
    return Graph{{(stopped + x.cos()).sum()}, {{}}, {x, dead}};
  });
}

TEST(EngineFunction, ReentrantBackward) {
  expect_as_oracle([] {
    auto x = leaf({4, 4}, 1), w = leaf({4, 4}, 2);
    auto h = Reentrant::apply(x.sin(), w);
    h = Reentrant::apply(h, w);
    return Graph{{h.mm(w).sum()}, {{}}, {x, w}};
  });
}

TEST(EngineFunction, ANestedBackwardThatWritesGradOfAParameterIsAnError) {
  for (const bool recorded : {false, true}) {
    const auto x = leaf({4, 4}, 1), w = leaf({4, 4}, 2);
    const auto y = Checkpoint::apply(x.sin(), reinterpret_cast<std::int64_t>(&w)).sum();
    const auto error = message_of(
        [&] { own_backward({{y}, {{}}, {x}}, {.retain_graph = recorded, .create_graph = recorded}); });
    EXPECT_NE(error.find("wrote .grad of a leaf of sizes [4, 4]"), std::string::npos) << error;
  }
}

TEST(EngineFunction, ANestedBackwardInATraceableNodeThatWritesGradIsAnError) {
  struct Traceable : torch::autograd::Node {
    explicit Traceable(at::Tensor w) : parameter(std::move(w)) {}
    variable_list apply(variable_list&& gradients) override {
      at::AutoGradMode grad(true);
      torch::autograd::backward({(parameter * parameter).sum()}, {});
      return std::move(gradients);
    }
    bool is_traceable() override { return true; }
    at::Tensor parameter;
  };
  auto x = leaf({4}, 1), w = leaf({4, 4}, 2), y = numbers({4}, 3);
  auto node = make_node<Traceable>(w);
  node->add_next_edge(torch::autograd::impl::gradient_edge(x));
  torch::autograd::impl::set_gradient_edge(y, {node, node->add_input_metadata(y)});
  const auto error = message_of([&] { own_backward({{y}, {numbers({4}, 4)}, {x}}); });
  EXPECT_NE(error.find("wrote .grad of a leaf of sizes [4, 4]"), std::string::npos) << error;
}

// The recorded backward holds a leaf that the function makes.
struct KeepsItsLeaf : Function<KeepsItsLeaf> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x) {
    context->save_for_backward({x});
    at::AutoGradMode no_grad(false);
    return x * x;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto x = context->get_saved_variables()[0].detach().requires_grad_();
    {
      at::AutoGradMode grad(true);
      torch::autograd::backward({x * x}, {gradients[0].detach()});
    }
    return {x.grad() + 0 * x};
  }
};

TEST(EngineFunction, ALeafThatAFunctionMakesMayStayInARecordedBackward) {
  const auto x = leaf({4}, 1);
  const auto y = KeepsItsLeaf::apply(x.sin());
  auto sink = own_backward({{y.sum()}, {{}}, {x}}, {.retain_graph = true, .create_graph = true});
  ASSERT_TRUE(sink[x].defined());
  expect_identical(sink[x].detach(), (2 * x.sin() * x.cos()).detach(), "x");
}

TEST(EngineFunction, ANestedBackwardMayReturnTheGradientOfAParameter) {
  expect_as_oracle([] {
    auto x = leaf({4, 4}, 1), w = leaf({4, 4}, 2);
    return Graph{{CheckpointOfInputs::apply(x.sin(), w).sum()}, {{}}, {x, w}};
  });
}

TEST(EngineFunction, OwnExecutorInsideLibTorchsEngine) {
  // The reverse case: an executor runs in a node of an Engine's backward.
  struct Nested : Function<Nested> {
    static at::Tensor forward(AutogradContext* context, const at::Tensor& x) {
      context->save_for_backward({x});
      return x.sin();
    }
    static variable_list backward(AutogradContext* context, const variable_list& gradients) {
      auto x = context->get_saved_variables()[0].detach().requires_grad_();
      at::Tensor y;
      {
        at::AutoGradMode grad(true);
        y = x.sin();
      }
      return {own_backward({{y}, {gradients[0]}, {x}})[x]};
    }
  };
  auto x = leaf({4}, 1);
  Nested::apply(x * 2.0).sum().backward();
  expect_identical(x.grad(), (numbers({4}, 1) * 2.0).cos() * 2.0, "x");
}

TEST(EngineFunction, ASavedTensorModifiedInPlaceIsTheSameError) {
  auto program = [] {
    auto x = leaf({4}, 1);
    auto h = x.exp();  // saves its result
    auto y = h.sin();
    h.mul_(2.0);
    return Graph{{y.sum()}, {{}}, {x}};
  };
  const auto expected = message_of([&] { oracle_backward(program()); });
  EXPECT_NE(expected.find("modified by an inplace operation"), std::string::npos) << expected;
  EXPECT_EQ(message_of([&] { own_backward(program()); }), expected);
}

TEST(EngineFunction, SavedVariablesAreKeptOnlyOnRequest) {
  for (bool retain : {true, false}) {
    auto x = leaf({4, 4}, 1);
    const Graph graph{{Scale::apply(x.mm(x), 2.0)}, {numbers({4, 4}, 2)}, {x}};
    auto first = own_backward(graph, {.retain_graph = retain});
    if (retain) {
      auto second = own_backward(graph, {.retain_graph = true});
      expect_identical(second[x], first[x], "second backward");
      auto third = own_backward(graph);
      expect_identical(third[x], first[x], "third backward");
    }
    const auto actual = message_of([&] { own_backward(graph); });
    EXPECT_NE(actual.find("backward through the graph a second time"), std::string::npos) << actual;
    EXPECT_EQ(actual, message_of([&] { oracle_backward(graph); }));
  }
}

TEST(EngineFunction, SavedTensorsAreFreedDuringTheBackward) {
  auto x = leaf({4}, 1);
  c10::weak_intrusive_ptr<c10::TensorImpl> saved(c10::intrusive_ptr<c10::TensorImpl>{});
  at::Tensor y;
  {
    auto h = x.exp();
    y = h * h;
    saved = c10::weak_intrusive_ptr<c10::TensorImpl>(h.getIntrusivePtr());
  }
  ASSERT_FALSE(saved.expired());
  own_backward({{y}, {numbers({4}, 2)}, {x}});
  EXPECT_TRUE(saved.expired()) << "although its graph still exists";
}

TEST(EngineFunction, ANodeIsNotifiedBeforeItsVariablesAreReleased) {
  struct Teller : torch::autograd::Node {
    variable_list apply(variable_list&& gradients) override {
      told += "apply ";
      return std::move(gradients);
    }
    void will_release_variables() override { told += "will "; }
    void release_variables() override { told += "release "; }
    std::string told;
  };
  for (bool retain : {true, false}) {
    auto x = leaf({4}, 1), y = numbers({4}, 2);
    auto teller = make_node<Teller>();
    teller->add_next_edge(torch::autograd::impl::gradient_edge(x));
    torch::autograd::impl::set_gradient_edge(y, {teller, teller->add_input_metadata(y)});
    own_backward({{y}, {numbers({4}, 3)}, {x}}, {.retain_graph = retain});
    EXPECT_EQ(teller->told, retain ? "apply " : "will apply release ");
  }
}

TEST(EngineFunction, ALeafThatChangedAfterTheForward) {
  expect_as_oracle([] {
    auto x = leaf({4}, 1), frozen = leaf({4}, 2);
    auto y = (x * frozen).sum();
    frozen.requires_grad_(false);
    return Graph{{y}, {{}}, {x, frozen}};
  });
  auto moved = [] {
    auto x = leaf({4}, 1);
    auto y = x.sin().sum();
    torch::autograd::impl::set_gradient_edge(x, torch::autograd::impl::gradient_edge(leaf({4}, 2).exp()));
    return Graph{{y}, {{}}, {x}};
  };
  const auto expected = message_of([&] { oracle_backward(moved()); });
  EXPECT_NE(expected, "");
  EXPECT_EQ(message_of([&] { own_backward(moved()); }), expected);
}

// The gradient of a gradient: the test compares both orders, and the first-order gradient must have a graph.
void expect_second_order_as_oracle(const std::function<Graph()>& program) {
  const ExecutorOptions first{.retain_graph = true, .create_graph = true};
  variable_list second_order[2];
  variable_list first_order[2];
  for (bool own : {false, true}) {
    const Graph graph = program();
    variable_list gradients;
    if (own) {
      auto sink = own_backward(graph, first);
      for (const auto& leaf : graph.leaves) gradients.push_back(sink[leaf]);
    } else {
      gradients = torch::autograd::grad(graph.roots, graph.leaves, graph.gradients, true, true);
    }
    at::Tensor penalty = at::zeros({}, at::kDouble);
    for (const auto& g : gradients) {
      ASSERT_TRUE(g.defined() && g.requires_grad());
      penalty = penalty + g.pow(2).sum();
    }
    const Graph again{{penalty}, {{}}, graph.leaves};
    if (own) {
      auto sink = own_backward(again);
      for (const auto& leaf : graph.leaves) second_order[1].push_back(sink[leaf]);
    } else {
      second_order[0] = torch::autograd::grad(again.roots, again.leaves, {}, std::nullopt, false);
    }
    first_order[own] = gradients;
  }
  for (std::size_t i = 0; i < first_order[0].size(); ++i) {
    expect_identical(first_order[1][i], first_order[0][i], "first order, leaf " + std::to_string(i));
    expect_identical(second_order[1][i], second_order[0][i], "second order, leaf " + std::to_string(i));
  }
}

TEST(EngineFunction, DoubleBackward) {
  expect_second_order_as_oracle([] {
    auto w = leaf({4, 4}, 1), b = leaf({4}, 2);
    auto h = torch::tanh(numbers({3, 4}, 3).mm(w) + b);
    return Graph{{h.mm(w).pow(3).sum(), h}, {{}, numbers({3, 4}, 4)}, {w, b}};
  });
}

TEST(EngineFunction, DoubleBackwardThroughCustomFunctions) {
  expect_second_order_as_oracle([] {
    auto x = leaf({4}, 1);
    return Graph{{Scale::apply(Scale::apply(x, 1.5).sin(), 0.5).sum()}, {{}}, {x}};
  });
}

TEST(EngineFunction, WithoutCreateGraphGradientsHaveNoGraph) {
  auto x = leaf({4}, 1);
  auto sink = own_backward({{x.pow(3).sum()}, {{}}, {x}}, {.retain_graph = true});
  EXPECT_FALSE(sink[x].requires_grad());
}

}  // namespace
}  // namespace weft::dist_autograd::engine_function_test
