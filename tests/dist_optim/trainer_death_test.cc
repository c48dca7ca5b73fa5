// A trainer dies while its step is applied to several objects of one owner, or before the handler of its call
// has run.
#include <weft/dist_optim/service/internal/optimizer_layer.h>
#include <weft/dist_optim/service/stepped_object.h>
#include <weft/rpc/call/call_hook.h>
#include <weft/rpc/call/interceptor.h>

#include <atomic>

#include "tests/dist_optim/step_support.h"
#include "tests/support/cluster.h"

namespace weft::dist_optim::trainer_death_test {
namespace {

using namespace step_support;

// The object that is stepped first blocks in the step until the test releases it.
struct Applying {
  test::Event first, released;
  std::atomic<int> begun = 0, applied = 0;
};

struct Slow : SteppedObject {
  explicit Slow(std::shared_ptr<Applying> of) : applying(std::move(of)) {}
  std::unique_ptr<StepTarget> make_step_target(std::shared_ptr<SteppedObject> self) override {
    struct Target : StepTarget {
      explicit Target(std::shared_ptr<SteppedObject> of) : object(std::move(of)) {}
      const OptimizerSpec& spec() const override { return own; }
      void check(const Gradients&) const override {}
      void step(const Gradients&) override {
        Applying& applying = *static_cast<Slow&>(*object).applying;
        if (applying.begun++ == 0) {
          applying.first.set();
          applying.released.wait();
        }
        ++applying.applied;
      }
      const OptimizerSpec own = own_optimizer();
      const std::shared_ptr<SteppedObject> object;
    };
    return std::make_unique<Target>(std::move(self));
  }
  int number() { return 0; }
  using Service = rpc::Service<"test.slow", rpc::Method<"number", &Slow::number>>;

  const std::shared_ptr<Applying> applying;
};

struct Shop {
  std::vector<rref::RRef<Slow>> objects;
  std::vector<rref::RRef<Slow>> all() { return objects; }
  using Service = rpc::Service<"test.shop", rpc::Method<"all", &Shop::all>>;
};

struct Both : StepParticipant {
  explicit Both(std::vector<rref::RRef<Slow>> of) : slow(std::move(of)) {}
  std::vector<rref::ReferencePtr> objects() const override {
    std::vector<rref::ReferencePtr> all;
    for (const auto& one : slow) all.push_back(one.reference());
    return all;
  }
  std::vector<StepRows> step_rows(std::span<const dist_autograd::Pass> passes,
                                  std::size_t count) const override {
    return std::vector<StepRows>(count, {{passes[0].id()}, at::zeros({1}, at::kLong), at::ones({1, 1})});
  }
  void admit_with(const std::shared_ptr<const Admit>&) override {}
  const std::vector<rref::RRef<Slow>> slow;
};

// Added after the hooks of the layers, which therefore get the death first.
struct Deaths : rpc::CallHook {
  bool knows(std::string_view) const override { return false; }
  void peer_gone(const rpc::AgentId&, const rpc::Error&) override { noticed.set(); }
  test::Event noticed;
};

class TrainerDeath : public ::testing::TestWithParam<StepMode> {};
INSTANTIATE_TEST_SUITE_P(Modes, TrainerDeath,
                         ::testing::Values(StepMode(synchronous), bounded_staleness(0), hogwild),
                         [](const auto& info) { return "mode" + std::to_string(info.index); });

TEST_P(TrainerDeath, CompletesItsStepInAllObjectsOfAnOwner) {
  const auto applying = std::make_shared<Applying>();
  Agents agents(2);
  const auto shop = std::make_shared<Shop>();
  for (int i = 0; i < 2; ++i)
    shop->objects.push_back(rref::local(agents[0], std::make_shared<Slow>(applying)));
  agents[0].serve(shop);
  const auto deaths = std::make_shared<Deaths>();
  agents[0].core()->hooks().add(deaths);

  const auto both = std::make_shared<Both>(got(agents.peer(1, 0).call<&Shop::all>()));
  DistributedOptimizer optimizer{agents[1], GetParam(), {}, {both}};
  dist_autograd::Pass pass{agents[1]};
  const at::Tensor leaf = at::ones({1}).requires_grad_();
  got(optimizer.admit(pass));
  got(pass.backward(leaf.sum()));
  auto step = optimizer.step(pass);
  applying->first.wait();
  agents.kill(1);
  deaths->noticed.wait();
  applying->released.set();
  test::eventually("the step is in both objects", [&] { return applying->applied == 2; });
  EXPECT_THROW(got(std::move(step)), rpc::Error);
}

// Holds the first call of one method until it is released.
struct Held : rpc::Interceptor {
  explicit Held(std::string of) : method(std::move(of)) {}
  rpc::Task<void> accept(rpc::CallContext& call) override {
    if (call.method() != method || arrived.is_set()) co_return;
    auto gate = released.future();
    arrived.set();
    co_await std::move(gate);
  }
  void answered(rpc::CallContext& call, const std::exception_ptr&) noexcept override {
    if (call.method() == method) over.set();
  }
  const std::string method;
  rpc::Promise<void> released;
  test::Event arrived, over;
};

class LateCall : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Methods, LateCall, ::testing::Values("attach", "admit"),
                         [](const auto& info) { return std::string(info.param); });

// The owner has removed the trainer before the handler of the call runs.
TEST_P(LateCall, OfADeadTrainerHasNoEffect) {
  const auto held = std::make_shared<Held>(std::string("weft.optim.") + GetParam());
  test::Cluster cluster{{.layers = layers(),
                         .adjust =
                             [&](rpc::AgentOptions& options) {
                               if (options.name == "owner") options.interceptors = {held};
                             }},
                        {"owner", "trainer", "other"}};
  rpc::Agent& owner = cluster["owner"];
  owner.allow_create<Layer>();
  const auto deaths = std::make_shared<Deaths>();
  owner.core()->hooks().add(deaths);
  const auto layer_of = [&](const std::string& name) {
    return rref::create<Layer>(cluster.peer(name, "owner"), rref::Named{"layer"}, std::int64_t{1});
  };
  const auto kept = layer_of("other"), layer = layer_of("trainer");

  rpc::Agent& trainer = cluster["trainer"];
  DistributedOptimizer optimizer{trainer, torch::optim::SGDOptions(0.1), synchronous, layer};
  dist_autograd::Pass pass{trainer};
  optimizer.admit(pass).then([](auto&&) {});
  held->arrived.wait();
  trainer.shut_down();
  deaths->noticed.wait();
  held->released.complete(rpc::Result<void>{});
  held->over.wait();
  const auto guards = OptimizerLayer::of(*owner.core())->guards();
  ASSERT_EQ(guards.size(), 1U);
  EXPECT_EQ(guards[0]->owned().trainers(), std::vector<std::string>{});
  EXPECT_EQ(guards[0]->owned().stats().open_passes, 0U);
}

}  // namespace
}  // namespace weft::dist_optim::trainer_death_test
