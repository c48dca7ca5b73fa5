// Owner snapshots: another agent continues the training from a snapshot with the same results.
#include <weft/dist_optim/owner_snapshot.h>

#include <weft/dist_optim/local/owned_parameters.h>

#include <functional>
#include <thread>

#include "tests/dist_optim/refusal.h"
#include "tests/dist_optim/step_support.h"

namespace weft::dist_optim::owner_snapshot_test {
namespace {

using namespace step_support;
using dist_autograd::Pass;
using rpc::ErrorKind;

at::Tensor input(double phase) { return numbers({3, 4}, phase); }

OptimizerSpec adam() { return torch::optim::AdamOptions(0.05).amsgrad(true); }

using Values = std::vector<at::Tensor>;

bool equal(const Values& left, const Values& right) {
  return left.size() == right.size() &&
         std::equal(left.begin(), left.end(), right.begin(),
                    [](const auto& one, const auto& other) { return torch::equal(one, other); });
}

// An owner of two layers. It returns its state to another owner, and restores such a state.
struct Keeper {
  explicit Keeper(rpc::Agent& agent, std::int64_t seed) : agent(&agent) {
    for (int i = 0; i < 2; ++i) {
      layers.push_back(rref::create<Layer>(agent.peer(agent.name()), seed + i));
      layers.back().ready().get();
    }
  }
  std::vector<rref::ReferencePtr> modules() const { return {layers[0].reference(), layers[1].reference()}; }
  rpc::Future<tensor::OnStreams<OwnerSnapshot>> take() { return take_owner_snapshot(*agent, modules()); }
  rpc::Future<void> restore(OwnerSnapshot snapshot) {
    return restore_owner_snapshot(*agent, modules(), std::move(snapshot));
  }
  std::vector<rref::RRef<Layer>> get() { return layers; }
  using Service = rpc::Service<"test.keeper", rpc::Method<"take", &Keeper::take>,
                               rpc::Method<"restore", &Keeper::restore>, rpc::Method<"get", &Keeper::get>>;
  rpc::Agent* agent;
  std::vector<rref::RRef<Layer>> layers;
};

// Workers 0 and 1 keep layers. Worker 2 trains them.
class OwnerSnapshots : public testing::Test {
 protected:
  OwnerSnapshots() {
    for (std::size_t i = 0; i < 2; ++i) {
      keepers.push_back(std::make_shared<Keeper>(workers[i], i == 0 ? 3 : 30));
      workers[i].serve(keepers[i]);
    }
  }
  ~OwnerSnapshots() override {
    for (const auto& keeper : keepers) keeper->layers.clear();
  }
  std::vector<rref::RRef<Layer>> layers_of(std::size_t worker) {
    return got(workers.peer(2, worker).call<&Keeper::get>());
  }
  static at::Tensor forward(const Pass& pass, const std::vector<rref::RRef<Layer>>& layers, int step) {
    const auto hidden = got(layers[0].call<&Layer::forward>(pass, input(step)));
    return got(layers[1].call<&Layer::forward>(pass, hidden)).square().sum();
  }
  void train(std::size_t worker, int from, int to, double rate = 0) {
    const auto layers = layers_of(worker);
    DistributedOptimizer optimizer{workers[2], adam(), synchronous, layers[0], layers[1]};
    if (rate > 0) got(optimizer.set_learning_rate(rate));
    for (int step = from; step < to; ++step) {
      Pass pass{workers[2]};
      got(pass.backward(forward(pass, layers, step)));
      EXPECT_EQ(got(optimizer.step(pass)).versions, versions_of(step + 1));
    }
  }
  static std::vector<std::uint64_t> versions_of(int version) {
    return {static_cast<std::uint64_t>(version), static_cast<std::uint64_t>(version)};
  }
  Values values(std::size_t worker) {
    Values all;
    for (const auto& layer : layers_of(worker))
      for (const auto& tensor : got(layer.call<&Layer::values>())) all.push_back(tensor);
    return all;
  }
  OwnerSnapshot taken(std::size_t worker) { return got(workers.peer(2, worker).call<&Keeper::take>()); }
  void restore(std::size_t worker, OwnerSnapshot snapshot) {
    got(workers.peer(2, worker).call<&Keeper::restore>(std::move(snapshot)));
  }

  Agents workers{3};
  std::vector<std::shared_ptr<Keeper>> keepers;
};

TEST_F(OwnerSnapshots, TrainingContinuesOnAnotherAgentBitForBit) {
  train(0, 0, 4, 0.02);
  const OwnerSnapshot snapshot = taken(0);
  EXPECT_EQ(snapshot.modules[0].version, 4U);
  EXPECT_EQ(snapshot.modules[1].spec, adam());
  restore(1, snapshot);  // no optimizer has stepped the layers there
  EXPECT_TRUE(equal(values(0), values(1)));
  train(0, 4, 8);
  train(1, 4, 8);
  EXPECT_TRUE(equal(values(0), values(1)));
  const OwnerSnapshot here = taken(0), there = taken(1);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(here.modules[i].optimizer.learning_rates, there.modules[i].optimizer.learning_rates);
    EXPECT_EQ(there.modules[i].optimizer.learning_rates.at(""), 0.02);
    for (const auto& [name, tensor] : here.modules[i].optimizer.tensors)
      EXPECT_TRUE(torch::equal(tensor, there.modules[i].optimizer.tensors.at(name))) << name;
  }
}

TEST_F(OwnerSnapshots, AnOwnerMayRestoreAnEarlierVersion) {
  train(0, 0, 2);
  const OwnerSnapshot snapshot = taken(0);
  const Values early = values(0);
  train(0, 2, 5);
  const Values late = values(0);
  restore(0, snapshot);
  EXPECT_TRUE(equal(values(0), early));
  train(0, 2, 5);
  EXPECT_TRUE(equal(values(0), late));
}

TEST_F(OwnerSnapshots, AHandleThatIsAttachedContinues) {
  const auto layers = layers_of(0);
  DistributedOptimizer optimizer{workers[2], adam(), bounded_staleness(2), layers[0], layers[1]};
  const auto step = [&](int number) {
    Pass pass{workers[2]};
    got(pass.backward(forward(pass, layers, number)));
    return got(optimizer.step(pass)).versions;
  };
  step(0);
  const OwnerSnapshot snapshot = taken(0);
  step(1);
  const Values late = values(0);
  restore(0, snapshot);
  EXPECT_EQ(step(1), versions_of(2));
  EXPECT_TRUE(equal(values(0), late));
}

TEST_F(OwnerSnapshots, ARestoreThatIsRefusedChangesNothing) {
  train(0, 0, 3);
  train(1, 0, 2);
  const OwnerSnapshot good = taken(0);
  const Values before = values(1);
  const auto refused = [&](const std::function<void(OwnerSnapshot&)>& spoil, const std::string& words) {
    OwnerSnapshot snapshot = good;
    spoil(snapshot);
    refusal(ErrorKind::invalid_argument, [&] { restore(1, snapshot); }, words);
    EXPECT_TRUE(equal(values(1), before)) << words;
  };
  for (const std::size_t i : {0U, 1U}) {  // whichever is restored first
    refused([&](auto& s) { s.modules[i].module.pop_back(); }, "missing");
    refused([&](auto& s) { s.modules[i].module[0].tensor = at::zeros({5}, at::kDouble); }, "shape");
    refused([&](auto& s) { s.modules[i].optimizer.optimizer = "SGD"; }, "SGD");
    refused([&](auto& s) { s.modules[i].optimizer.tensors.erase("linear.bias/exp_avg"); }, "is missing");
    refused([&](auto& s) { s.modules[i].spec.options.erase("lr"); }, "lr");
  }
  refused([&](auto& s) { s.modules.pop_back(); }, "has 1 modules, expected 2");
  train(1, 2, 3);  // its own versions and state
  restore(1, good);
  EXPECT_TRUE(equal(values(0), values(1)));
}

TEST_F(OwnerSnapshots, ARestoreUnderAnOpenPassIsRefused) {
  train(0, 0, 2);
  const OwnerSnapshot snapshot = taken(0);
  const auto layers = layers_of(0);
  {
    DistributedOptimizer optimizer{workers[2], adam(), bounded_staleness(1), layers[0], layers[1]};
    Pass pass{workers[2]};
    const auto loss = forward(pass, layers, 2);
    refusal(
        ErrorKind::failed_precondition, [&] { restore(0, snapshot); }, "passes over the parameters are open");
    got(pass.backward(loss));
    EXPECT_TRUE(got(optimizer.step(pass)).applied);
    DistributedOptimizer other{workers[2], torch::optim::SGDOptions(0.1), bounded_staleness(1),
                               layers_of(1)[0]};
    got(other.attached());
    refusal(ErrorKind::invalid_argument, [&] { restore(1, snapshot); }, "attached trainers step with SGD");
  }
  restore(0, snapshot);
}

TEST_F(OwnerSnapshots, ModulesOfOthersAndOtherObjectsAreRefused) {
  const auto theirs = layers_of(0);  // worker 2's references
  const std::vector<rref::ReferencePtr> far{theirs[0].reference()};
  refusal(
      ErrorKind::invalid_argument, [&] { got(take_owner_snapshot(workers[2], far)); }, "lives on worker0");
  refusal(
      ErrorKind::invalid_argument, [&] { got(restore_owner_snapshot(workers[2], far, {})); },
      "lives on worker0");
  const auto own = keepers[0]->modules();
  refusal(
      ErrorKind::invalid_argument, [&] { got(take_owner_snapshot(workers[0], {own[0], own[0]})); }, "twice");
  EXPECT_TRUE(got(take_owner_snapshot(workers[0], {})).take().modules.empty());
}

TEST_F(OwnerSnapshots, ASnapshotWithoutAnOptimizerHasTheValuesAlone) {
  const OwnerSnapshot snapshot = taken(0);
  EXPECT_TRUE(snapshot.modules[0].spec.name.empty());
  restore(1, snapshot);
  EXPECT_TRUE(equal(values(0), values(1)));
  train(0, 0, 2);
  train(1, 0, 2);
  EXPECT_TRUE(equal(values(0), values(1)));
}

// Owned parameters are restored while a pass waits to read. The pass reads the restored values.
TEST(OwnedParametersRestore, APassThatReadsDuringARestoreWaits) {
  const at::Tensor weight = at::zeros({2}, at::kDouble).requires_grad_();
  OwnedParameters owned({{"weight", weight}});
  owned.register_trainer("t", torch::optim::SGDOptions(1), bounded_staleness(1));
  OwnerState state = owned.snapshot([] {});
  state.version = 7;
  const PassKey pass{1, 1};
  bool admitted = false;
  owned.restore(state, [&] {
    owned.admit("t", pass, [&](const std::exception_ptr& error) { admitted = error == nullptr; });
    EXPECT_FALSE(admitted);
    std::exception_ptr refused;
    owned.admit("t", {1, 2}, [&](const std::exception_ptr& error) { refused = error; }, 0);
    refusal(ErrorKind::failed_precondition, [&] { std::rethrow_exception(refused); }, "restore is in flight");
    refusal(
        ErrorKind::failed_precondition,
        [&] { owned.register_trainer("u", torch::optim::SGDOptions(1), bounded_staleness(1)); }, "restore");
    refusal(ErrorKind::failed_precondition, [&] { owned.restore(state, [] {}); }, "another restore");
    weight.variable_data().fill_(5);
  });
  EXPECT_TRUE(admitted);
  {
    const auto reading = owned.read(pass);
    EXPECT_TRUE(torch::equal(weight, at::full({2}, 5, at::kDouble)));
  }
  EXPECT_EQ(owned.stats().version, 7U);
  EXPECT_EQ(owned.stats().live_versions, 1U);
  owned.step("t", {{pass, {{0, at::ones({2}, at::kDouble)}}}},
             [](const std::exception_ptr& error, auto version) {
               EXPECT_TRUE(error == nullptr);
               EXPECT_EQ(version, 8U);
             });
  EXPECT_TRUE(torch::equal(weight, at::full({2}, 4, at::kDouble)));
  refusal(
      ErrorKind::internal, [&] { owned.restore(state, [] { throw rpc::Error(ErrorKind::internal, "no"); }); },
      "no");
  EXPECT_EQ(owned.stats().version, 8U);
  EXPECT_EQ(OwnedParameters::Version{8}, owned.snapshot([] {}).version);
}

// For any order of steps and restores, the values are those of the version: each step subtracts one.
TEST(OwnedParametersRestore, IsAtomicForAThreadThatSteps) {
  const at::Tensor weight = at::zeros({1}, at::kDouble).requires_grad_();
  OwnedParameters owned({{"weight", weight}});
  owned.register_trainer("t", torch::optim::SGDOptions(1), bounded_staleness(0));
  OwnerState state = owned.snapshot([] {});
  state.version = 3;
  std::thread stepping([&] {
    for (std::uint64_t i = 1; i <= 3000; ++i) {
      const PassKey pass{1, i};
      test::Event admitted;
      owned.admit("t", pass, [&](const std::exception_ptr& error) {
        EXPECT_TRUE(error == nullptr);
        admitted.set();
      });
      admitted.wait();
      owned.step("t", {{pass, {{0, at::ones({1}, at::kDouble)}}}},
                 [](const std::exception_ptr& error, auto) { EXPECT_TRUE(error == nullptr); });
    }
  });
  const auto value = [&] { return weight.variable_data().item<double>(); };
  for (int i = 0; i < 3000; ++i) {
    try {
      owned.restore(state, [&] { weight.variable_data().fill_(-3); });
    } catch (const rpc::Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::failed_precondition) << error.what();
    }
    double seen = 0;
    const auto version = owned.snapshot([&] { seen = value(); }).version;
    EXPECT_EQ(seen, -static_cast<double>(version));
  }
  stepping.join();
  owned.restore(state, [&] { weight.variable_data().fill_(-3); });
  EXPECT_EQ(owned.stats().version, 3U);
  EXPECT_EQ(owned.stats().live_versions, 1U);
}

}  // namespace
}  // namespace weft::dist_optim::owner_snapshot_test
