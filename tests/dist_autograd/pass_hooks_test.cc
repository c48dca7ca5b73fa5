// Hooks on gradients, as data parallel training uses them: replicas of a module on several workers take part
// in one pass, and their gradients are averaged before the backward ends.
#include <weft/dist_autograd/module/remote_module.h>

#include "tests/dist_autograd/pass_support.h"
#include "tests/support/cluster.h"

namespace weft::dist_autograd::test::pass_hooks_test {
namespace {

using rpc::ErrorKind;

// Computes the sum over replicas, as all_reduce of a group would. It is complete after all replicas have
// contributed.
class Reduction {
 public:
  explicit Reduction(std::size_t replicas) : replicas_(replicas) {}

  rpc::Future<void> add(at::Tensor part) {
    std::vector<at::Tensor> parts;
    std::vector<rpc::Promise<void>> done;
    rpc::Future<void> future;
    {
      std::lock_guard lock(mutex_);
      parts_.push_back(std::move(part));
      future = promises_.emplace_back().future();
      if (parts_.size() != replicas_) return future;
      parts.swap(parts_);
      done.swap(promises_);
    }
    at::Tensor mean = parts.front().clone();
    for (std::size_t i = 1; i < parts.size(); ++i) mean += parts[i];
    mean /= static_cast<double>(replicas_);
    for (at::Tensor& each : parts) each.copy_(mean);
    for (rpc::Promise<void>& promise : done) promise.complete({});
    return future;
  }
  void fail() {
    std::lock_guard lock(mutex_);
    for (rpc::Promise<void>& promise : promises_)
      promise.fail(rpc::Error(ErrorKind::peer_lost, "a rank of the group was lost"));
    promises_.clear();
    parts_.clear();
  }

 private:
  const std::size_t replicas_;
  std::mutex mutex_;  // guards what follows
  std::vector<at::Tensor> parts_;
  std::vector<rpc::Promise<void>> promises_;
};

// A linear layer whose gradient is copied to a bucket. The bucket is reduced over the replicas.
struct Replica : torch::nn::Module {
  static inline std::shared_ptr<Reduction> reduction;  // of the current test

  explicit Replica(at::Tensor initial)
      : w(register_parameter("w", initial.clone())), bucket(at::zeros({w.numel()}, w.options())) {}

  at::Tensor forward(rpc::CallContext& call, at::Tensor x) {
    attach(Pass::of(call));
    return x.mm(w).tanh();
  }
  // The result does not depend on the result of `next`.
  rpc::Task<at::Tensor> aside(rpc::CallContext& call, rref::RRef<Replica> next, at::Tensor x) {
    co_await next.with(call).call<&Replica::forward>(x);
    co_return forward(call, x);
  }
  void attach(Pass pass) {
    const auto state = pass.state().get();
    pass.on_gradient(w, [this, state](at::Tensor& gradient) {
      ++hooked;
      const at::Tensor view = bucket.view_as(w);
      view.copy_(gradient);
      gradient = view;
      state->complete_after(reduction->add(bucket));
    });
    pass.on_finalize([this, state](const std::vector<at::Tensor>& without) {
      ++finalized;
      if (without.empty()) return;
      bucket.zero_();
      state->complete_after(reduction->add(bucket));
    });
  }
  std::vector<std::int64_t> counts() { return {hooked, finalized}; }
  at::Tensor reduced() { return bucket.view_as(w); }

  using Service =
      rpc::Service<"test.replica", rpc::Constructor<at::Tensor>, rpc::Method<"forward", &Replica::forward>,
                   rpc::Method<"aside", &Replica::aside>, rpc::Method<"counts", &Replica::counts>,
                   rpc::Method<"reduced", &Replica::reduced>>;

  at::Tensor w, bucket;
  std::int64_t hooked = 0, finalized = 0;
};

using Counts = std::vector<std::int64_t>;

class PassHooks : public ::testing::Test {
 protected:
  PassHooks() {
    torch::manual_seed(3);
    Replica::reduction = std::make_shared<Reduction>(2);
    initial = matrix();
    x0 = matrix();
    for (std::size_t i = 0; i < 3; ++i) cluster[i].allow_create<Replica>();
    one = rref::create<Replica>(cluster.peer(0, 1), initial);
    two = rref::create<Replica>(cluster.peer(0, 2), initial);
  }
  // The gradient of a loss in one process.
  template <class Loss>
  at::Tensor oracle(Loss loss) const {
    at::Tensor w = initial.clone().requires_grad_();
    loss(w).backward();
    return w.grad();
  }

  Cluster cluster{3};
  at::Tensor initial, x0;
  rref::RRef<Replica> one, two;
};

class PassHooksTest : public PassHooks, public ::testing::WithParamInterface<BackwardMode> {
 protected:
  BackwardOptions options() const { return {.mode = GetParam()}; }
};

TEST_P(PassHooksTest, GradientsOfReplicasAreAveragedBeforeTheBackwardCompletes) {
  const at::Tensor x1 = x0, x2 = matrix();
  Pass pass{cluster[0]};
  const at::Tensor loss = one.call<&Replica::forward>(pass, x1).get().sum() +
                          two.call<&Replica::forward>(pass, x2).get().square().sum();
  pass.backward(loss, {}, options()).get();
  const at::Tensor mean =
      oracle([&](const at::Tensor& w) { return x1.mm(w).tanh().sum() + x2.mm(w).tanh().square().sum(); }) / 2;
  for (const auto& replica : {one, two}) {
    expect_equal(replica.call<&Replica::reduced>().get(), mean, "the bucket");
    const StateDict gradients = RemoteModule(replica).gradients(pass).get();
    ASSERT_EQ(gradients.size(), 1U);
    EXPECT_EQ(gradients[0].name, "w");
    expect_equal(gradients[0].tensor, mean, "the gradient in the pass, which is a view of the bucket");
    EXPECT_EQ(replica.call<&Replica::counts>().get(), (Counts{1, 1}));
  }
}

// The loss does not depend on a replica that a nested call reached. This replica still contributes to the
// reduction. In fast mode an unused message is an error.
TEST_F(PassHooks, FinalizeReachesAWorkerThatTheBackwardDoesNot) {
  Pass pass{cluster[0]};
  const at::Tensor y = one.call<&Replica::aside>(pass, two, x0).get();
  pass.backward(y.sum()).get();
  const at::Tensor mean = oracle([&](const at::Tensor& w) { return x0.mm(w).tanh().sum(); }) / 2;
  for (const auto& replica : {one, two})
    expect_equal(replica.call<&Replica::reduced>().get(), mean, "the bucket");
  EXPECT_EQ(one.call<&Replica::counts>().get(), (Counts{1, 1}));
  EXPECT_EQ(two.call<&Replica::counts>().get(), (Counts{0, 1}));
}

TEST_P(PassHooksTest, TheBackwardCompletesOnlyAfterTheWork) {
  Pass pass{cluster[0]};
  const at::Tensor loss = one.call<&Replica::forward>(pass, x0).get().sum();
  auto done = pass.backward(loss, {}, options());
  weft::test::eventually("the gradient is complete",
                         [&] { return one.call<&Replica::counts>().get() == Counts{1, 1}; });
  EXPECT_FALSE(done.ready());
  Replica::reduction->add(at::zeros_like(initial).flatten()).get();
  done.get();
}

TEST_P(PassHooksTest, FailedWorkAbortsThePassOnEveryWorker) {
  Pass pass{cluster[0]};
  const at::Tensor loss = one.call<&Replica::forward>(pass, x0).get().sum();
  auto done = pass.backward(loss, {}, options());
  weft::test::eventually("the gradient is complete",
                         [&] { return one.call<&Replica::counts>().get() == Counts{1, 1}; });
  Replica::reduction->fail();
  EXPECT_EQ(kind_of([&] { done.get(); }, "a rank of the group was lost"), ErrorKind::peer_lost);
  weft::test::eventually("the pass has ended", [&] { return cluster.live_passes() == 0; });
}

TEST_P(PassHooksTest, ATimeoutNamesTheWorkersThatTheBackwardWaitsFor) {
  Pass pass{cluster[0]};
  const at::Tensor loss = one.call<&Replica::forward>(pass, x0).get().sum();
  BackwardOptions limited = options();
  limited.timeout = std::chrono::milliseconds(200);
  EXPECT_EQ(kind_of([&] { pass.backward(loss, {}, limited).get(); }, "it waits for worker1"),
            ErrorKind::deadline_exceeded);
  weft::test::eventually("the pass has ended", [&] { return cluster.live_passes() == 0; });
  EXPECT_EQ(kind_of([&] { one.call<&Replica::forward>(pass, x0).get(); }), ErrorKind::deadline_exceeded);
}

TEST_P(PassHooksTest, ABackwardWithinItsTimeoutIsNotAffected) {
  Pass pass{cluster[0]};
  const at::Tensor loss =
      one.call<&Replica::forward>(pass, x0).get().sum() + two.call<&Replica::forward>(pass, x0).get().sum();
  BackwardOptions limited = options();
  limited.timeout = std::chrono::hours(1);
  pass.backward(loss, {}, limited).get();
  EXPECT_EQ(one.call<&Replica::counts>().get(), (Counts{1, 1}));
}

TEST_F(PassHooks, RunOnceInEachBackward) {
  Pass pass{cluster[0]};
  const at::Tensor loss =
      one.call<&Replica::forward>(pass, x0).get().sum() + two.call<&Replica::forward>(pass, x0).get().sum();
  pass.backward(loss, {}, {.retain_graph = true}).get();
  pass.backward(loss).get();
  for (const auto& replica : {one, two}) EXPECT_EQ(replica.call<&Replica::counts>().get(), (Counts{2, 2}));
  // The second backward adds to the result of the first one, which is the mean. The sum is averaged.
  const at::Tensor gradient = oracle([&](const at::Tensor& w) { return x0.mm(w).tanh().sum(); });
  expect_equal(one.call<&Replica::reduced>().get(), 2 * gradient, "the bucket");
}

TEST_P(PassHooksTest, WrongUseIsRefused) {
  Pass pass{cluster[0]};
  at::Tensor leaf = initial.clone().requires_grad_();
  const auto ignore = [](at::Tensor&) {};
  EXPECT_EQ(kind_of([&] { pass.on_gradient(initial, ignore); }), ErrorKind::invalid_argument);
  EXPECT_EQ(kind_of([&] { pass.on_gradient(leaf * 2, ignore); }), ErrorKind::invalid_argument);
  pass.on_gradient(leaf, ignore);
  EXPECT_EQ(kind_of([&] { pass.on_gradient(leaf, ignore); }), ErrorKind::already_exists);
  EXPECT_EQ(kind_of([&] { pass.complete_after(rpc::Future<void>::made({})); }),
            ErrorKind::failed_precondition);
  EXPECT_EQ(kind_of([&] { RemoteModule(one).gradients(pass).get(); }), ErrorKind::not_found)
      << "the pass has not come to the owner";
}

TEST_P(PassHooksTest, AHookThatThrowsOrChangesTheShapeFailsTheBackward) {
  for (const bool throws : {true, false}) {
    Pass pass{cluster[0]};
    at::Tensor leaf = initial.clone().requires_grad_();
    pass.on_gradient(leaf, [throws](at::Tensor& gradient) {
      if (throws) throw std::runtime_error("the bucket is full");
      gradient = gradient.flatten();
    });
    const auto result = rpc::capture([&] { pass.backward(leaf.sum(), {}, options()).get(); });
    ASSERT_FALSE(result.ok());
    if (throws) {
      EXPECT_THROW(std::rethrow_exception(result.error()), std::runtime_error);
    } else {
      EXPECT_EQ(kind_of([&] { std::rethrow_exception(result.error()); }, "another shape"),
                ErrorKind::invalid_argument);
    }
  }
}

// The threads of a pipeline stage. Tasks of the passes that it holds wait, and the task of the pass with the
// least number runs first.
class StageThreads {
 public:
  class OfPass final : public rpc::Executor {
   public:
    OfPass(StageThreads& stage, int number) : stage_(stage), number_(number) {}
    void post(rpc::Callback job) override {
      std::lock_guard lock(stage_.mutex_);
      stage_.jobs_.emplace(number_, std::move(job));
    }

   private:
    StageThreads& stage_;
    const int number_;
  };

  std::size_t waiting() {
    std::lock_guard lock(mutex_);
    return jobs_.size();
  }
  // Runs waiting tasks, and the tasks that these add, until `done` returns true.
  void run_until(const std::function<bool()>& done) {
    weft::test::eventually("the stage is done", [&] {
      for (;;) {
        rpc::Callback job;
        {
          std::lock_guard lock(mutex_);
          if (jobs_.empty()) break;
          job = std::move(jobs_.extract(jobs_.begin()).mapped());
        }
        job();
      }
      return done();
    });
  }

 private:
  std::mutex mutex_;  // guards jobs_
  std::multimap<int, rpc::Callback> jobs_;
};

TEST_P(PassHooksTest, AStageChoosesWhichPassRunsFirst) {
  StageThreads stage;
  std::vector<int> order;
  at::Tensor leaf = initial.clone().requires_grad_();
  std::vector<Pass> passes;
  std::vector<rpc::Future<void>> done;
  for (const int number : {3, 1, 2}) {
    Pass& pass = passes.emplace_back(cluster[0]);
    pass.on_gradient(leaf, [&order, number](at::Tensor&) { order.push_back(number); });
    pass.state()->run_on(std::make_shared<StageThreads::OfPass>(stage, number));
    done.push_back(pass.backward((leaf * number).sum(), {}, options()));
  }
  weft::test::eventually("all wait for the stage", [&] { return stage.waiting() == 3; });
  EXPECT_TRUE(order.empty());
  stage.run_until(
      [&] { return std::all_of(done.begin(), done.end(), [](const auto& each) { return each.ready(); }); });
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
  for (int i = 0; i < 3; ++i) {
    done[static_cast<std::size_t>(i)].get();
    const int number = std::vector<int>{3, 1, 2}[static_cast<std::size_t>(i)];
    expect_equal(passes[static_cast<std::size_t>(i)].gradient(leaf), at::full_like(leaf, number), "the leaf");
    passes[static_cast<std::size_t>(i)].state()->run_on(nullptr);
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, PassHooksTest, ::testing::Values(BackwardMode::smart, BackwardMode::fast),
                         [](const auto& mode) {
                           return mode.param == BackwardMode::smart ? "smart" : "fast";
                         });

}  // namespace
}  // namespace weft::dist_autograd::test::pass_hooks_test
