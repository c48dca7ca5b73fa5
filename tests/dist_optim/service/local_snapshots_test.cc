// Snapshots of several objects of one owner, concurrent with steps over several of these objects.
#include <weft/dist_optim/layers.h>
#include <weft/dist_optim/service/internal/local_snapshots.h>
#include <weft/dist_optim/service/internal/optimizer_layer.h>
#include <weft/rpc/endpoint/agent_core.h>
#include <weft/rpc/testing/wait.h>

#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

namespace weft::dist_optim::service_local_snapshots_test {
namespace {

using Versions = std::vector<std::uint64_t>;

// Two objects that two trainers step. One thread runs the agent's handlers, in the order in which they are
// posted.
class LocalSnapshotsTest : public testing::Test {
 protected:
  LocalSnapshotsTest() {
    for (const auto& guard : guards)
      for (const std::string trainer : {"t", "u"})
        guard->owned().register_trainer(trainer, torch::optim::SGDOptions(1),
                                        {StepMode::Kind::bounded_staleness, 9});
  }

  static rpc::AgentOptions options() {
    rpc::AgentOptions options;
    options.name = "owner";
    options.handler_threads = 1;
    return options;
  }
  static std::shared_ptr<OwnedParametersGuard> make(std::uint64_t number) {
    const at::Tensor weight = at::zeros({2}, at::kDouble).requires_grad_();
    return std::make_shared<OwnedParametersGuard>(std::vector<Parameter>{{"weight", weight}}, number);
  }

  // Makes the trainer's step over the first `objects` objects.
  void step(const std::string& trainer, std::size_t objects, std::function<void()> after_first = nullptr) {
    for (std::size_t i = 0; i < objects; ++i) {
      const PassKey pass{trainer == "t" ? 0U : 1U, i};
      OwnedParameters& owned = guards[i]->owned();
      owned.admit(trainer, pass, [](std::exception_ptr error) { EXPECT_TRUE(error == nullptr); });
      const Gradients ones{{0, at::ones({2}, at::kDouble)}};
      auto promise = std::make_shared<rpc::Promise<StepOutcome>>();
      promise->future().then([this, i, after_first](rpc::Result<StepOutcome>&& outcome) {
        EXPECT_TRUE(outcome.ok());
        ++outcomes;
        if (i == 0 && after_first) after_first();
      });
      StepRequest request;
      request.number = 1;
      steps->arrive(trainer, request, objects,
                    {guards[i], owned.prepare(trainer, 1, {{pass, ones}}, {}, 1), promise});
    }
  }
  Versions versions() const {
    return {guards[0]->owned().stats().version, guards[1]->owned().stats().version};
  }
  void snapshot(std::uint64_t number) {
    for (const auto& guard : guards)
      snapshots->arrive({"t", number}, guards.size(),
                        {guard, [this, guard] { read.push_back(guard->owned().stats().version); },
                         [this](const std::exception_ptr& error) {
                           EXPECT_TRUE(error == nullptr);
                           if (++done == 2) ended.set();
                         }});
  }
  void run_handlers() {
    test::Event reached;
    agent.core()->handlers().post([&] { reached.set(); });
    reached.wait();
  }

  rpc::Agent agent{options(), layers()};
  const std::vector<std::shared_ptr<OwnedParametersGuard>> guards{make(1), make(2)};
  const std::shared_ptr<LocalSteps> steps = std::make_shared<LocalSteps>();
  const std::shared_ptr<LocalSnapshots> snapshots = std::make_shared<LocalSnapshots>(agent.core(), steps);
  int outcomes = 0, done = 0;
  Versions read;
  test::Event ended;
};

TEST_F(LocalSnapshotsTest, WaitsForAStepThatIsAppliedToSomeObjects) {
  step("t", 2, [this] {
    EXPECT_EQ(versions(), (Versions{1, 0}));
    snapshot(7);
    run_handlers();
    EXPECT_EQ(done, 0);
  });
  ended.wait();
  EXPECT_EQ(read, (Versions{1, 1}));
}

TEST_F(LocalSnapshotsTest, StepsOverSeveralObjectsWaitForTheRelease) {
  std::optional<std::uint64_t> hold;
  steps->hold({guards[0]}, [&](std::uint64_t number) { hold = number; });
  ASSERT_TRUE(hold);
  step("t", 2);
  EXPECT_EQ(versions(), (Versions{0, 0}));
  step("u", 1);
  EXPECT_EQ(versions(), (Versions{1, 0})) << "a step over one object is never half applied";
  EXPECT_EQ(outcomes, 1);
  steps->release(*hold);
  EXPECT_EQ(versions(), (Versions{2, 1}));
  EXPECT_EQ(outcomes, 3);
  snapshot(7);
  ended.wait();
  EXPECT_EQ(read, (Versions{2, 1}));
}

TEST_F(LocalSnapshotsTest, AnAbandonedSnapshotFails) {
  std::exception_ptr failed;
  snapshots->arrive({"t", 3}, 2,
                    {guards[0], [] {}, [&](const std::exception_ptr& error) { failed = error; }});
  snapshots->abort({"t", 3});
  snapshots->abort({"t", 3});
  EXPECT_TRUE(failed != nullptr);
  step("t", 2);
  EXPECT_EQ(versions(), (Versions{1, 1})) << "nothing is held";
}

}  // namespace
}  // namespace weft::dist_optim::service_local_snapshots_test
