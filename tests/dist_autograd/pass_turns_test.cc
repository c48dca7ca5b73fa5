// Pipeline stages that run their micro-batches in turns. Each micro-batch is a pass. The schedule of a stage
// determines when a backward runs on this stage (B), and when it computes the gradients of the stage's
// parameters (W).
#include <weft/dist_autograd/pass.h>
#include <weft/dist_autograd/pass_state.h>
#include <weft/rpc/core/handler_pool.h>
#include <weft/rpc/core/when_all.h>

#include <atomic>

#include "tests/dist_autograd/pass_support.h"
#include "tests/support/cluster.h"

namespace weft::dist_autograd::test::pass_turns_test {
namespace {

using rpc::ErrorKind;
using Actions = std::vector<std::string>;  // "B0": the backward of micro-batch 0; "W0": its weight part

// A linear layer that records the actions in their order.
struct Stage {
  explicit Stage(at::Tensor initial) : w(initial.clone().set_requires_grad(true)) {}

  at::Tensor forward(rpc::CallContext& call, std::int64_t micro_batch, at::Tensor x) {
    Pass pass = Pass::of(call);
    if (held) pass.state()->turns().hold();
    pass.state()->run_on(threads);
    passes[micro_batch] = pass.state();
    const std::string number = std::to_string(micro_batch);
    pass.on_gradient(w, [this, number](at::Tensor&) {
      note("W" + number);
      if (fails) throw std::runtime_error("the gradient was lost");
    });
    input = x.storage().getWeakStorageImpl();
    const at::Tensor out = x.mm(w).tanh();
    out.register_hook([this, number](const at::Tensor&) { note("B" + number); });
    return out;
  }
  at::Tensor unused(rpc::CallContext& call, at::Tensor x) {
    Pass::of(call);
    return x.mm(w).sin();
  }
  // One step of the schedule.
  rpc::Task<void> run(Actions actions) {
    for (const std::string& action : actions) co_await turn(action);
  }
  // Each action starts without waiting for the previous one.
  rpc::Future<void> run_at_once(Actions actions) {
    std::vector<rpc::Future<void>> done;
    for (const std::string& action : actions) done.push_back(turn(action));
    return rpc::when_all(std::move(done));
  }
  rpc::Future<void> turn(const std::string& action) {
    PassTurns& turns = passes.at(std::stol(action.substr(1)))->turns();
    return action.front() == 'B' ? turns.resume() : turns.run_weights();
  }
  void hold() { passes.at(0)->turns().hold(); }
  void let_run() { held = false; }
  void fail() { fails = true; }
  Actions ran() {
    std::lock_guard lock(mutex);
    return log;
  }
  bool keeps_input() { return !input.expired(); }
  at::Tensor gradient(std::int64_t micro_batch) { return passes.at(micro_batch)->gradient(w); }

  using Service =
      rpc::Service<"test.stage", rpc::Constructor<at::Tensor>, rpc::Method<"forward", &Stage::forward>,
                   rpc::Method<"unused", &Stage::unused>, rpc::Method<"run", &Stage::run>,
                   rpc::Method<"run_at_once", &Stage::run_at_once>, rpc::Method<"hold", &Stage::hold>,
                   rpc::Method<"let_run", &Stage::let_run>, rpc::Method<"fail", &Stage::fail>,
                   rpc::Method<"ran", &Stage::ran>, rpc::Method<"keeps_input", &Stage::keeps_input>,
                   rpc::Method<"gradient", &Stage::gradient>>;

  void note(std::string action) {
    EXPECT_TRUE(threads->running_here());
    std::lock_guard lock(mutex);
    log.push_back(std::move(action));
  }

  const at::Tensor w;
  static inline std::shared_ptr<rpc::HandlerPool> threads;  // of the current test
  bool held = true;
  std::map<std::int64_t, std::shared_ptr<PassState>> passes;
  c10::weak_intrusive_ptr<c10::StorageImpl> input{c10::intrusive_ptr<c10::StorageImpl>()};
  std::atomic<bool> fails{false};
  std::mutex mutex;  // guards log
  Actions log;
};

// Worker 0 starts the passes. The stages are on workers 1 and 2.
class PassTurnsTest : public ::testing::Test {
 protected:
  PassTurnsTest() {
    torch::manual_seed(4);
    // Passes refer to the pool until their last task has run on it. They must therefore not own it.
    Stage::threads = std::shared_ptr<rpc::HandlerPool>(std::shared_ptr<void>(), &threads);
    for (std::size_t i = 1; i < 3; ++i) {
      cluster[i].allow_create<Stage>();
      initial.push_back(matrix());
      stages.push_back(rref::create<Stage>(cluster.peer(0, i), initial.back()));
    }
  }
  struct MicroBatch {
    Pass pass;
    at::Tensor x, loss;
  };
  MicroBatch forward(std::int64_t number) {
    MicroBatch made{Pass(cluster[0]), matrix().requires_grad_(), {}};
    const at::Tensor h = stages[0].call<&Stage::forward>(made.pass, number, made.x).get();
    made.loss = stages[1].call<&Stage::forward>(made.pass, number, h).get().square().sum();
    return made;
  }
  // Computes the gradients of x and of both weights in one process.
  std::vector<at::Tensor> expected(const at::Tensor& x) const {
    std::vector<at::Tensor> leaves{x.detach().clone().requires_grad_()};
    for (const at::Tensor& w : initial) leaves.push_back(w.clone().requires_grad_());
    leaves[0].mm(leaves[1]).tanh().mm(leaves[2]).tanh().square().sum().backward();
    return {leaves[0].grad(), leaves[1].grad(), leaves[2].grad()};
  }
  void expect_gradients(const MicroBatch& of, std::int64_t number, double times = 1) {
    const auto want = expected(of.x);
    EXPECT_TRUE(at::equal(of.pass.gradient(of.x), want[0] * times));
    for (std::size_t i = 0; i < 2; ++i)
      EXPECT_TRUE(at::equal(stages[i].call<&Stage::gradient>(number).get(), want[i + 1] * times))
          << "stage " << i;
  }
  Actions ran(std::size_t stage) { return stages[stage].call<&Stage::ran>().get(); }
  rpc::Future<void> run(std::size_t stage, Actions actions) {
    return stages[stage].call<&Stage::run>(actions);
  }
  void expect_all_freed() {
    weft::test::eventually("the passes have ended", [&] { return cluster.live_passes() == 0; });
    for (const auto& stage : stages)
      weft::test::eventually("the stage has freed what the weight part needs",
                             [&] { return !stage.call<&Stage::keeps_input>().get(); });
  }

  rpc::HandlerPool threads{1};  // outlives the agents
  Cluster cluster{3};
  std::vector<at::Tensor> initial;
  std::vector<rref::RRef<Stage>> stages;
};

class PassSchedules : public PassTurnsTest, public ::testing::WithParamInterface<BackwardMode> {
 protected:
  // Starts the backwards of three micro-batches in this order, and runs the schedules of the stages.
  void expect_run(const std::vector<std::size_t>& order, bool defer, const Actions& of_first,
                  const Actions& of_last) {
    std::vector<MicroBatch> all;
    for (std::int64_t i = 0; i < 3; ++i) all.push_back(forward(i));
    std::vector<rpc::Future<void>> done;
    for (const std::size_t i : order)
      done.push_back(all[i].pass.backward(all[i].loss, {}, {.mode = GetParam(), .defer_weights = defer}));
    EXPECT_EQ(ran(1), Actions());
    auto first = run(0, of_first), last = run(1, of_last);
    first.get();
    last.get();
    for (auto& each : done) each.get();
    for (std::size_t i = 0; i < 3; ++i) expect_gradients(all[i], static_cast<std::int64_t>(i));
  }
};

// All backwards have started, the last one first. Each stage runs them in the order of its schedule.
TEST_P(PassSchedules, OneForwardOneBackward) {
  const Actions schedule{"B0", "B1", "B2"};
  expect_run({2, 1, 0}, false, schedule, schedule);
  for (std::size_t stage : {0, 1}) EXPECT_EQ(ran(stage), (Actions{"B0", "W0", "B1", "W1", "B2", "W2"}));
}

TEST_P(PassSchedules, ZeroBubble) {
  const Actions of_first{"B0", "W0", "B1", "W1", "B2", "W2"}, of_last{"B0", "B1", "W0", "B2", "W1", "W2"};
  expect_run({0, 1, 2}, true, of_first, of_last);
  EXPECT_EQ(ran(0), of_first);
  EXPECT_EQ(ran(1), of_last);
}

INSTANTIATE_TEST_SUITE_P(Modes, PassSchedules, ::testing::Values(BackwardMode::smart, BackwardMode::fast),
                         [](const auto& mode) {
                           return mode.param == BackwardMode::smart ? "smart" : "fast";
                         });

TEST_F(PassTurnsTest, InputGradientsAreSentBeforeTheWeightPartRuns) {
  MicroBatch one = forward(0);
  auto done = one.pass.backward(one.loss, {}, {.defer_weights = true});
  run(1, {"B0"}).get();
  run(0, {"B0"}).get();
  EXPECT_EQ(ran(0), Actions{"B0"});
  EXPECT_EQ(ran(1), Actions{"B0"});
  for (const auto& stage : stages) EXPECT_FALSE(stage.call<&Stage::gradient>(0).get().defined());
  run(0, {"W0"}).get();
  EXPECT_EQ(ran(0), (Actions{"B0", "W0"}));
  EXPECT_FALSE(done.ready()) << "the weight part of the last stage has not run";
  run(1, {"W0"}).get();
  done.get();
  expect_gradients(one, 0);
}

TEST_F(PassTurnsTest, WithoutHoldTheWeightPartRunsAfterTheInputPartOfAllWorkers) {
  stages[0].call<&Stage::let_run>().get();
  MicroBatch one = forward(0);
  auto done = one.pass.backward(one.loss, {}, {.defer_weights = true});
  auto turn = run(1, {"B0"});
  turn.get();
  weft::test::eventually("the stage without hold has run its weight part",
                         [&] { return ran(0) == Actions{"B0", "W0"}; });
  EXPECT_EQ(ran(1), Actions{"B0"}) << "held";
  EXPECT_FALSE(done.ready());
  run(1, {"W0"}).get();
  done.get();
  expect_gradients(one, 0);
}

TEST_F(PassTurnsTest, TheWeightPartIsOptional) {
  for (const auto& stage : stages) stage.call<&Stage::let_run>().get();
  for (const BackwardMode mode : {BackwardMode::smart, BackwardMode::fast}) {
    MicroBatch one = forward(0);
    one.pass.backward(one.loss, {}, {.mode = mode, .defer_weights = true}).get();
    expect_gradients(one, 0);
  }
}

TEST_F(PassTurnsTest, ATurnMayBeGivenInAdvance) {
  MicroBatch one = forward(0);
  auto turns = stages[1].call<&Stage::run_at_once>(Actions{"W0", "B0"});
  auto others = run(0, {"B0", "W0"});
  EXPECT_EQ(ran(1), Actions());
  one.pass.backward(one.loss, {}, {.defer_weights = true}).get();
  turns.get();
  others.get();
  EXPECT_EQ(ran(1), (Actions{"B0", "W0"}));
  expect_gradients(one, 0);
}

TEST_F(PassTurnsTest, EachBackwardOfAPassIsHeldAgain) {
  MicroBatch one = forward(0);
  for (const bool last : {false, true}) {
    auto done = one.pass.backward(one.loss, {}, {.retain_graph = !last, .defer_weights = true});
    auto first = run(0, {"B0", "W0"});
    run(1, {"B0", "W0"}).get();
    first.get();
    done.get();
    if (last) break;
    expect_gradients(one, 0);
    for (const auto& stage : stages) stage.call<&Stage::hold>().get();
  }
  for (std::size_t stage : {0, 1}) EXPECT_EQ(ran(stage), (Actions{"B0", "W0", "B0", "W0"}));
  expect_gradients(one, 0, 2);
}

// A turn ends although a node waits for gradients that never arrive.
TEST_F(PassTurnsTest, AnUnusedResultDoesNotHoldUpATurn) {
  for (const bool defer : {false, true}) {
    MicroBatch one = forward(0);
    stages[1].call<&Stage::unused>(one.pass, one.x).get();
    auto done = one.pass.backward(one.loss, {}, {.defer_weights = defer});
    auto first = run(0, {"B0", "W0"}), last = run(1, {"B0", "W0"});
    first.get();
    last.get();
    done.get();
    expect_gradients(one, 0);
  }
}

// --- Faults ---

TEST_F(PassTurnsTest, ATurnNeedsHold) {
  Pass pass{cluster[0]};
  PassTurns& turns = pass.state()->turns();
  EXPECT_EQ(kind_of([&] { turns.resume().get(); }, "resume: "), ErrorKind::failed_precondition);
  turns.hold();
  (void)turns.run_weights();
  EXPECT_EQ(kind_of([&] { turns.run_weights().get(); }, "run_weights: "), ErrorKind::failed_precondition);
  auto waits = turns.resume();
  pass.release();
  EXPECT_EQ(kind_of([&] { waits.get(); }, "was released"), ErrorKind::failed_precondition);
  EXPECT_EQ(kind_of([&] { turns.resume().get(); }, "was released"), ErrorKind::failed_precondition);
}

TEST_F(PassTurnsTest, ARecordedBackwardIsRefused) {
  MicroBatch one = forward(0);
  EXPECT_EQ(
      kind_of([&] { one.pass.backward(one.loss, {}, {.create_graph = true, .defer_weights = true}).get(); }),
      ErrorKind::invalid_argument);
  auto done = one.pass.backward(one.loss);
  auto first = run(0, {"B0"});
  run(1, {"B0"}).get();
  done.get();
  expect_gradients(one, 0);
}

TEST_F(PassTurnsTest, AReleaseBetweenThePartsFreesTheKeptTensors) {
  MicroBatch one = forward(0);
  auto done = one.pass.backward(one.loss, {}, {.defer_weights = true});
  run(1, {"B0"}).get();
  run(0, {"B0"}).get();
  one.loss.reset();
  for (const auto& stage : stages) EXPECT_TRUE(stage.call<&Stage::keeps_input>().get());
  one.pass.release();
  EXPECT_EQ(kind_of([&] { done.get(); }, "was released"), ErrorKind::failed_precondition);
  expect_all_freed();
  EXPECT_EQ(kind_of([&] { run(1, {"W0"}).get(); }, "was released"), ErrorKind::failed_precondition);
}

TEST_F(PassTurnsTest, ATimeoutBetweenThePartsFreesTheKeptTensors) {
  MicroBatch one = forward(0);
  BackwardOptions options{.defer_weights = true};
  options.timeout = std::chrono::milliseconds(300);
  auto done = one.pass.backward(one.loss, {}, options);
  auto turn = run(1, {"B0"});
  EXPECT_EQ(kind_of([&] { done.get(); }, "it waits for worker"), ErrorKind::deadline_exceeded);
  one.loss.reset();
  expect_all_freed();
}

TEST_F(PassTurnsTest, AFailureInTheWeightPartAbortsThePassOnEveryWorker) {
  stages[1].call<&Stage::fail>().get();
  MicroBatch one = forward(0);
  auto done = one.pass.backward(one.loss, {}, {.defer_weights = true});
  run(1, {"B0"}).get();
  EXPECT_EQ(kind_of([&] { run(1, {"W0"}).get(); }, "the gradient was lost"), ErrorKind::handler_failed);
  auto turns = run(0, {"B0", "W0"});
  EXPECT_EQ(kind_of([&] { done.get(); }, "the gradient was lost"), ErrorKind::handler_failed);
  one.loss.reset();
  expect_all_freed();
}

TEST_F(PassTurnsTest, ALostWorkerBetweenThePartsAbortsThePass) {
  MicroBatch one = forward(0);
  auto done = one.pass.backward(one.loss, {}, {.defer_weights = true});
  run(1, {"B0"}).get();
  cluster.kill(1);
  EXPECT_EQ(kind_of([&] { done.get(); }), ErrorKind::peer_lost);
  one.loss.reset();
  weft::test::eventually("the stage has freed what the weight part needs",
                         [&] { return !stages[1].call<&Stage::keeps_input>().get(); });
}

}  // namespace
}  // namespace weft::dist_autograd::test::pass_turns_test
