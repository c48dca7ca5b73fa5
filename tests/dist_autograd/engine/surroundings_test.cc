// The environment of the nodes that NodeExecutor runs: threads, thread-local state, anomaly mode.
#include <torch/torch.h>

#include "tests/dist_autograd/engine/support.h"

#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/engine.h>

#include <stdexcept>
#include <thread>

namespace weft::dist_autograd::engine_surroundings_test {
namespace {

using testing::expect_identical;
using testing::Fail;
using testing::Graph;
using testing::leaf;
using testing::MapSink;
using testing::message_of;
using testing::numbers;
using testing::source_of;

// --- Thread-local state ---

TEST(EngineSurroundings, GradModeIsSetInNodesAndRestoredForTheCaller) {
  for (bool create_graph : {false, true}) {
    for (bool outside : {false, true}) {
      at::AutoGradMode mode(outside);
      std::vector<bool> inside;
      at::Tensor x, y;
      {
        at::AutoGradMode on(true);
        x = leaf({4}, 1);
        auto h = x.sin();
        y = h.cos();
        h.register_hook([&](const at::Tensor&) { inside.push_back(at::GradMode::is_enabled()); });
        y.register_hook([&](const at::Tensor&) {
          inside.push_back(at::GradMode::is_enabled());
          at::GradMode::set_enabled(!create_graph);  // and does not restore it
        });
      }
      testing::own_backward({{y}, {numbers({4}, 2)}, {x}},
                            {.retain_graph = true, .create_graph = create_graph});
      EXPECT_EQ(inside, (std::vector<bool>{create_graph, create_graph}));
      EXPECT_EQ(at::GradMode::is_enabled(), outside);
    }
  }
}

TEST(EngineSurroundings, RestoresTheThreadAfterAnError) {
  auto x = leaf({4}, 1);
  MapSink sink;
  NodeExecutor executor(sink, {});
  executor.add_root(Fail::apply(x), numbers({4}, 2));
  executor.plan();
  EXPECT_NE(message_of([&] { executor.run(); }), "");
  EXPECT_TRUE(at::GradMode::is_enabled());
}

// A thread of a pool may have any thread-local state. The results are those of the thread that created the
// executor.
TEST(EngineSurroundings, EachCallMayComeFromAnotherThread) {
  auto x = leaf({4}, 1);
  auto h = x.sin(), y = x.cos();
  MapSink sink;
  NodeExecutor executor(sink, {.retain_graph = true, .create_graph = true});
  auto a = source_of("a", {h}), b = source_of("b", {y});
  auto elsewhere = [](const std::function<void()>& act) {
    std::thread([&] {
      c10::InferenceMode inference;
      act();
      EXPECT_TRUE(c10::InferenceMode::is_enabled());
    }).join();
  };
  elsewhere([&] { executor.expect(a); });
  elsewhere([&] { executor.expect(b); });
  elsewhere([&] { executor.plan(); });
  // The leaf is a float: the cast at delivery must keep the graph of the gradient's gradient.
  auto given = numbers({4}, 2).to(at::kFloat).requires_grad_();
  std::thread([&] {
    at::NoGradGuard no_grad;
    executor.deliver(a, {given});
  }).join();
  elsewhere([&] { executor.run(); });
  std::thread([&] { executor.deliver(b, {numbers({4}, 3)}); }).join();
  elsewhere([&] { executor.run(); });
  ASSERT_TRUE(executor.complete());
  ASSERT_TRUE(sink[x].requires_grad());
  EXPECT_FALSE(sink[x].is_inference());
  auto second = torch::autograd::grad({sink[x].sum()}, {x, given});
  const auto value = numbers({4}, 1);
  EXPECT_TRUE(at::allclose(second[0], -given.to(at::kDouble) * value.sin() - numbers({4}, 3) * value.cos()));
  EXPECT_TRUE(at::allclose(second[1], value.cos().to(at::kFloat)));
}

// In a hook there is no graph task: queries for it return none, and queue_callback() fails.
TEST(EngineSurroundings, HooksHaveNoGraphTask) {
  auto x = leaf({4}, 1);
  auto y = x.sin();
  std::string refusal;
  y.register_hook([&](const at::Tensor&) {
    EXPECT_EQ(torch::autograd::get_current_graph_task_id(), -1);
    EXPECT_EQ(torch::autograd::get_current_graph_task_exec_info(), nullptr);
    EXPECT_FALSE(torch::autograd::get_current_node());
    refusal = message_of([] { torch::autograd::Engine::get_default_engine().queue_callback([] {}); });
  });
  auto sink = testing::own_backward({{y.sum()}, {{}}, {x}});
  EXPECT_NE(refusal.find("during backward pass"), std::string::npos) << refusal;
  EXPECT_TRUE(sink[x].defined());
}

// --- Anomaly mode ---

struct Warnings : c10::WarningHandler {
  void process(const c10::Warning& warning) override { text += warning.msg(); }
  std::string text;
};

TEST(EngineSurroundings, AnomalyModeNamesTheForward) {
  torch::autograd::DetectAnomalyGuard anomaly(/*check_nan=*/true);
  for (bool nan : {true, false}) {
    auto program = [=] {
      auto x = leaf({4}, 1);
      auto bad = x.detach().abs().neg().requires_grad_();
      auto y = nan ? bad.sqrt() : Fail::apply(bad);
      return Graph{{y.sum()}, {{}}, {bad}};
    };
    std::string messages[2], warned[2];
    for (bool own : {false, true}) {
      Warnings warnings;
      c10::WarningUtils::WarningHandlerGuard guard(&warnings);
      const auto graph = program();
      messages[own] = message_of([&] {
        if (own) {
          testing::own_backward(graph);
        } else {
          testing::oracle_backward(graph);
        }
      });
      warned[own] = warnings.text.substr(0, warnings.text.find("Traceback"));
    }
    EXPECT_EQ(messages[1], messages[0]);
    EXPECT_EQ(warned[1], warned[0]);
    EXPECT_EQ(messages[1],
              nan ? "Function 'SqrtBackward0' returned nan values in its 0th output." : "no luck");
    EXPECT_NE(warned[1].find(nan ? "SqrtBackward0" : "Fail"), std::string::npos) << warned[1];
  }
}

TEST(EngineSurroundings, NanIsAcceptedWithoutAnomalyModeOrWithoutItsCheck) {
  auto run = [] {
    auto x = numbers({4}, 1).abs().neg().requires_grad_();
    return testing::own_backward({{x.sqrt().sum()}, {{}}, {x}})[x].isnan().all().item<bool>();
  };
  EXPECT_TRUE(run());
  torch::autograd::DetectAnomalyGuard anomaly(/*check_nan=*/false);
  EXPECT_TRUE(run());
}

}  // namespace
}  // namespace weft::dist_autograd::engine_surroundings_test
