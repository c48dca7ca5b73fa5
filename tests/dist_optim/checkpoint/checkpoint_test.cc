// Checkpoints of modules and their optimizer: a run that continues from a checkpoint equals a run without an
// interruption.
#include <weft/dist_optim/checkpoint/checkpoint.h>
#include <weft/dist_optim/checkpoint/tensor_file.h>

#include "tests/dist_optim/refusal.h"
#include "tests/dist_optim/step_support.h"
#include "tests/support/cluster.h"

namespace weft::dist_optim::checkpoint_test {
namespace {

using namespace step_support;
using torch::optim::AdamOptions;

at::Tensor input(int i) { return numbers({3, 4}, 0.3 * i); }

// Two layers: the second one uses the output of the first one. They are on owners 0 and 1, or both on one
// owner. The trainer is worker 2.
struct Training {
  Training(Agents& agents, std::size_t first, std::size_t second, std::int64_t seed,
           OptimizerSpec spec = AdamOptions(1e-2))
      : trainer(agents[2]),
        a(rref::create<Layer>(agents.peer(2, first), seed)),
        b(rref::create<Layer>(agents.peer(2, second), seed + 1)),
        optimizer{trainer, std::move(spec), synchronous, a, b} {}

  void train(int from, int to) {
    for (int i = from; i < to; ++i) {
      dist_autograd::Pass pass{trainer};
      const at::Tensor hidden = got(a.call<&Layer::forward>(pass, input(i)));
      got(pass.backward(got(b.call<&Layer::forward>(pass, hidden)).square().sum()));
      got(optimizer.step(pass));
    }
  }
  Modules modules() const { return {a, b}; }
  void expect_as(Training& other) {
    expect_equal(got(a.call<&Layer::values>()), got(other.a.call<&Layer::values>()));
    expect_equal(got(b.call<&Layer::values>()), got(other.b.call<&Layer::values>()));
  }

  rpc::Agent& trainer;
  rref::RRef<Layer> a, b;
  DistributedOptimizer optimizer;
};

class Checkpoint : public testing::Test {
 protected:
  Checkpoint() {
    std::string name = (std::filesystem::temp_directory_path() / "weft-checkpoint-XXXXXX").string();
    folder = ::mkdtemp(name.data());
  }
  ~Checkpoint() override { std::filesystem::remove_all(folder); }

  // Returns the text of the error.
  template <class T>
  std::string refusal(rpc::ErrorKind kind, rpc::Future<T> future, const std::string& words = "") {
    return dist_optim::refusal(kind, [&] { got(std::move(future)); }, words);
  }

  Agents agents{3};
  std::filesystem::path folder;
  const std::filesystem::path path() const { return folder / "latest"; }
};

TEST_F(Checkpoint, ARunContinuesOnOtherOwners) {
  Training whole(agents, 0, 1, 1);
  whole.train(0, 3);
  got(whole.optimizer.set_learning_rate(2e-3));
  got(save(path(), whole.modules(), whole.optimizer, {{"step", "3"}}));
  whole.train(3, 6);
  for (const auto& [first, second] : {std::pair<std::size_t, std::size_t>{1, 0}, {0, 0}, {2, 1}}) {
    Training next(agents, first, second, 40);
    EXPECT_EQ(got(load(path(), next.modules(), next.optimizer)), (Notes{{"step", "3"}}));
    next.train(3, 6);
    next.expect_as(whole);
  }
}

TEST_F(Checkpoint, EarlierStepsAreInTheCheckpoint) {
  Training run(agents, 0, 1, 1), same(agents, 0, 1, 1);
  dist_autograd::Pass pass{run.trainer};
  const at::Tensor hidden = got(run.a.call<&Layer::forward>(pass, input(0)));
  got(pass.backward(got(run.b.call<&Layer::forward>(pass, hidden)).square().sum()));
  auto step = run.optimizer.step(pass);
  got(save(path(), run.modules(), run.optimizer));  // nobody has waited for the step
  got(std::move(step));
  same.train(0, 1);
  Training next(agents, 0, 1, 40);
  got(load(path(), next.modules(), next.optimizer));
  next.expect_as(same);
}

TEST_F(Checkpoint, ModulesAlone) {
  Training run(agents, 0, 1, 1), other(agents, 1, 0, 40);
  got(save(path(), run.modules()));
  EXPECT_TRUE(got(load(path(), other.modules())).empty());
  other.expect_as(run);
  refusal(rpc::ErrorKind::invalid_argument, load(path(), other.modules(), other.optimizer), "no optimizer");
}

TEST_F(Checkpoint, InvalidCheckpointsAreRefused) {
  Training run(agents, 0, 1, 1);
  run.train(0, 1);
  got(save(path(), run.modules(), run.optimizer));
  Training other(agents, 0, 1, 40, torch::optim::SGDOptions(0.1));
  const auto before = got(other.a.call<&Layer::values>());
  refusal(rpc::ErrorKind::invalid_argument, load(path(), {other.a}, other.optimizer),
          "2 modules, expected 1");
  auto table = rref::create<Table>(agents.peer(2, 0), std::int64_t{5});
  refusal(rpc::ErrorKind::invalid_argument, load(path(), {table, other.b}), "rows.weight");
  expect_equal(got(other.a.call<&Layer::values>()), before);
  refusal(rpc::ErrorKind::invalid_argument, load(path(), other.modules(), other.optimizer));  // not Adam's
  // the module and its state would change together, and the state was refused
  expect_equal(got(other.a.call<&Layer::values>()), before);
  refusal(rpc::ErrorKind::invalid_argument, save(path(), Modules{}));
  refusal(rpc::ErrorKind::invalid_argument, save(path(), run.modules(), {{"weft.step", "3"}}));
  refusal(rpc::ErrorKind::failed_precondition, load(folder / "none", run.modules()));
  write_tensor_file(path(), {{{"x", at::ones({1})}}, {}, false});
  refusal(rpc::ErrorKind::invalid_argument, load(path(), run.modules()), "not written by save");
}

// The first owner accepts its part of each of these states, and the second one refuses its part.
TEST_F(Checkpoint, ARefusalOfOneOwnerChangesNoOwner) {
  Training run(agents, 0, 1, 1), other(agents, 0, 1, 40);
  run.train(0, 2);
  other.train(0, 1);
  const std::vector<rref::ReferencePtr> modules{other.a.reference(), other.b.reference()};
  const DistSnapshot good = got(run.optimizer.snapshot({run.a.reference(), run.b.reference()}));
  const std::vector<at::Tensor> a = got(other.a.call<&Layer::values>()),
                                b = got(other.b.call<&Layer::values>());
  const auto state = got(other.optimizer.save_state());
  const auto expect_unchanged = [&] {
    expect_equal(got(other.a.call<&Layer::values>()), a);
    expect_equal(got(other.b.call<&Layer::values>()), b);
    const auto now = got(other.optimizer.save_state());
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(now.modules[i].learning_rates, state.modules[i].learning_rates);
      for (const auto& [name, tensor] : state.modules[i].tensors)
        EXPECT_TRUE(at::equal(tensor, now.modules[i].tensors.at(name))) << name;
    }
  };
  const std::pair<const char*, std::function<void(OptimizerState&)>> states[] = {
      {"expected Double[4, 4]", [](auto& of) { of.tensors["linear.weight/exp_avg"] = at::ones({2}); }},
      {"exp_avg_sq is missing", [](auto& of) { of.tensors.erase("linear.bias/exp_avg_sq"); }},
      {"belong to these parameters", [](auto& of) { of.tensors["other/exp_avg"] = at::ones({4}); }},
      {"of at least 0", [](auto& of) { of.tensors["linear.bias/step"] = at::scalar_tensor(-1, at::kLong); }},
      {"a finite number", [](auto& of) { of.learning_rates[""] = std::numeric_limits<double>::infinity(); }},
      {"the optimizer SGD", [](auto& of) { of.optimizer = "SGD"; }}};
  for (const auto& [words, spoil] : states) {
    SCOPED_TRACE(words);
    DistSnapshot spoiled = good;
    spoil(spoiled.optimizer.modules[1]);
    for (const bool whole : {false, true}) {
      auto loaded =
          whole ? other.optimizer.restore(modules, spoiled) : other.optimizer.load_state(spoiled.optimizer);
      refusal(rpc::ErrorKind::invalid_argument, std::move(loaded), words);
      expect_unchanged();
    }
  }
  const std::pair<const char*, std::function<void(dist_autograd::StateDict&)>> parameters[] = {
      {"is of shape [4, 4], not [2]", [](auto& of) { of.front().tensor = at::ones({2}); }},
      {"is not dense", [](auto& of) { of.front().tensor = at::eye(4, at::kDouble).to_sparse(); }},
      {"linear.bias", [](auto& of) { of.pop_back(); }},
      {"further", [](auto& of) { of.push_back({"further", at::ones({2})}); }}};
  for (const auto& [words, spoil] : parameters) {
    SCOPED_TRACE(words);
    DistSnapshot spoiled = good;
    spoil(spoiled.modules[1]);
    refusal(rpc::ErrorKind::invalid_argument, other.optimizer.restore(modules, spoiled), words);
    expect_unchanged();
  }
  auto table = rref::create<Table>(agents.peer(2, 1), std::int64_t{5});
  got(save(path(), {run.a, table}));
  refusal(rpc::ErrorKind::invalid_argument, load(path(), other.modules()));  // without the optimizer
  expect_unchanged();
  got(other.optimizer.restore(modules, good));
  other.expect_as(run);
}

class RefusesCalls final : public rpc::Interceptor {
 public:
  std::string method;  // set while no calls are in flight
  rpc::Task<void> accept(rpc::CallContext& call) override {
    if (call.method() == method) throw rpc::Error(rpc::ErrorKind::unavailable, "not now");
    co_return;
  }
};

// The second owner has accepted the state, but cannot set it any more.
TEST_F(Checkpoint, TheErrorListsTheModulesThatHaveTheState) {
  const auto refuses = std::make_shared<RefusesCalls>();
  test::Cluster cluster{{layers(), false,
                         [&](rpc::AgentOptions& options) {
                           if (options.name == "second") options.interceptors.push_back(refuses);
                         }},
                        {"first", "second", "saver"}};
  std::vector<rref::RRef<Layer>> made;
  for (const char* owner : {"first", "second"}) {
    cluster[owner].allow_create<Layer>();
    made.push_back(rref::create<Layer>(cluster.peer("saver", owner), std::int64_t{1}));
  }
  DistributedOptimizer optimizer{cluster["saver"], AdamOptions(1e-2), synchronous, made[0], made[1]};
  got(save(path(), {made[0], made[1]}, optimizer));
  const auto state = got(optimizer.save_state());
  const auto expect_text = [&](const std::string& text) {
    for (const char* const words :
         {"module 1 on second: ", "not now", "the new state is in 1 of 2: ", "module 0 on first"})
      EXPECT_NE(text.find(words), std::string::npos) << words << " in " << text;
  };
  refuses->method = "weft.optim.restore";
  expect_text(refusal(rpc::ErrorKind::unavailable, load(path(), {made[0], made[1]}, optimizer)));
  refuses->method = "weft.optim.load_state";
  expect_text(refusal(rpc::ErrorKind::unavailable, optimizer.load_state(state)));
  refuses->method = "weft.module.load_state_dict";
  expect_text(refusal(rpc::ErrorKind::unavailable, load(path(), {made[0], made[1]})));
  refuses->method.clear();
  got(load(path(), {made[0], made[1]}, optimizer));
}

TEST_F(Checkpoint, ALostOwnerLeavesThePreviousCheckpoint) {
  Training run(agents, 0, 1, 1), same(agents, 0, 1, 1);
  got(save(path(), run.modules(), run.optimizer, {{"step", "0"}}));
  run.train(0, 1);
  agents.kill(1);
  EXPECT_THROW(got(save(path(), run.modules(), run.optimizer, {{"step", "1"}})), rpc::Error);
  Training next(agents, 0, 0, 40);
  EXPECT_EQ(got(load(path(), next.modules(), next.optimizer)), (Notes{{"step", "0"}}));
  expect_equal(got(next.a.call<&Layer::values>()), got(same.a.call<&Layer::values>()));
}

// Lets another trainer step between two calls that save() or load() makes to an owner.
class StepInBetween final : public rpc::Interceptor {
 public:
  std::function<rpc::Future<void>()> step;  // set while the saver makes no calls

  rpc::Task<void> accept(rpc::CallContext& call) override {
    if (call.peer().id.name != "saver" || !step || ++calls_ != 2) co_return;
    rpc::Future<void> stepped = step();
    co_await std::move(stepped);
  }

 private:
  std::atomic<int> calls_{0};
};

// Modules of one owner. One trainer steps them, and another agent saves and loads them.
class SteppedByAnother : public Checkpoint {
 protected:
  rref::RRef<Layer> named(const std::string& trainer, const char* name = "layer") {
    return rref::create<Layer>(cluster.peer(trainer, "owner"), rref::Named{name}, std::int64_t{1});
  }
  void step_in_between(DistributedOptimizer& optimizer, const dist_autograd::Pass& pass) {
    between->step = [&optimizer, &pass] {
      return optimizer.step(pass).then([](rpc::Result<StepResult>&& result) {
        return result.ok() ? rpc::Result<void>() : rpc::Result<void>(result.error());
      });
    };
  }
  // Passes of the other trainer over its module.
  std::vector<dist_autograd::Pass> passes_over(const rref::RRef<Layer>& module, int count) {
    std::vector<dist_autograd::Pass> passes;
    for (int i = 0; i < count; ++i) {
      auto& pass = passes.emplace_back(cluster["other"]);
      got(pass.backward(got(module.call<&Layer::forward>(pass, input(i))).square().sum()));
    }
    return passes;
  }

  const std::shared_ptr<StepInBetween> between = std::make_shared<StepInBetween>();
  test::Cluster cluster{{layers(), false,
                         [this](rpc::AgentOptions& options) {
                           if (options.name == "owner") options.interceptors.push_back(between);
                         }},
                        {"owner", "other", "saver"}};
  const bool allowed = (cluster["owner"].allow_create<Layer>(), true);
};

TEST_F(SteppedByAnother, ParametersAndStateAreOfOneVersion) {
  const auto saved = named("saver"), again = named("saver"), of_other = named("other");
  DistributedOptimizer saver{cluster["saver"], AdamOptions(1e-2), hogwild, saved};
  DistributedOptimizer other{cluster["other"], AdamOptions(1e-2), hogwild, of_other};
  const auto passes = passes_over(of_other, 3);
  got(other.step(passes[0]));
  // Uses the RRef that the optimizer has, and another RRef to the same object.
  for (const auto& [module, pass] : {std::pair{saved, 1}, {again, 2}}) {
    step_in_between(other, passes[pass]);
    got(save(path(), {module}, saver));
    between->step = {};
    const TensorFile file = read_tensor_file(path());
    const auto steps = file.tensors.at("optimizer.0/linear.bias/step").item<std::int64_t>();
    const auto now = got(saver.save_state()).modules[0].tensors.at("linear.bias/step");
    EXPECT_EQ(torch::equal(file.tensors.at("module.0/linear.bias"), got(saved.call<&Layer::values>()).at(1)),
              steps == now.item<std::int64_t>());
  }
}

TEST_F(SteppedByAnother, LoadingChangesAModuleOnce) {
  const auto saved = named("saver"), of_other = named("other");
  DistributedOptimizer saver{cluster["saver"], AdamOptions(1e-2), hogwild, saved};
  DistributedOptimizer other{cluster["other"], AdamOptions(1e-2), hogwild, of_other};
  const auto passes = passes_over(of_other, 2);
  got(other.step(passes[0]));
  got(save(path(), {saved}, saver));
  step_in_between(other, passes[1]);
  got(load(path(), {saved}, saver));
  between->step = {};
  const TensorFile file = read_tensor_file(path());
  const auto values = got(saved.call<&Layer::values>());
  EXPECT_TRUE(torch::equal(file.tensors.at("module.0/linear.weight"), values.at(0)));
  EXPECT_TRUE(torch::equal(file.tensors.at("module.0/linear.bias"), values.at(1)));
  EXPECT_EQ(got(saver.stats()).at(0).version, 3U);  // two steps, and the loaded state
}

struct NoModule {
  std::int64_t one() { return 1; }
  using Service = rpc::Service<"checkpoint_test.no_module", rpc::Method<"one", &NoModule::one>>;
};

// Two layers, which the other trainer steps together.
class SharedLayers : public SteppedByAnother {
 protected:
  std::vector<rref::RRef<Layer>> layers_of(const std::string& trainer) {
    return {named(trainer, "a"), named(trainer, "b")};
  }
  dist_autograd::Pass backward(int i) {
    dist_autograd::Pass pass{cluster["other"]};
    const at::Tensor hidden = got(stepped[0].call<&Layer::forward>(pass, input(i)));
    got(pass.backward(got(stepped[1].call<&Layer::forward>(pass, hidden)).square().sum()));
    return pass;
  }
  // Returns the numbers of steps of the layers' optimizers in the file.
  std::vector<std::int64_t> steps_saved() const {
    const TensorFile file = read_tensor_file(path());
    std::vector<std::int64_t> steps;
    for (const std::string layer : {"0", "1"})
      steps.push_back(file.tensors.at("optimizer." + layer + "/linear.bias/step").item<std::int64_t>());
    return steps;
  }

  const std::vector<rref::RRef<Layer>> saved = layers_of("saver"), stepped = layers_of("other");
  DistributedOptimizer saver{cluster["saver"], AdamOptions(1e-2), hogwild, saved[0], saved[1]};
  DistributedOptimizer other{cluster["other"], AdamOptions(1e-2), hogwild, stepped[0], stepped[1]};
};

// The other trainer steps between the calls for the two modules.
TEST_F(SharedLayers, AreSavedAtOneMoment) {
  got(other.step(backward(0)));
  const auto pass = backward(1);
  step_in_between(other, pass);
  got(save(path(), {saved[0], saved[1]}, saver));
  between->step = {};
  EXPECT_EQ(steps_saved(), (std::vector<std::int64_t>{2, 2}));
}

TEST_F(SharedLayers, AreSavedOrFailTogether) {
  got(other.step(backward(0)));
  const auto own = rref::local(cluster["saver"], std::make_shared<Layer>(1));  // of another owner
  got(save(path(), {saved[0], own, saved[1]}, saver));
  cluster["owner"].allow_create<NoModule>();
  const auto none = rref::create<NoModule>(cluster.peer("saver", "owner"));
  const Modules wrong{saved[0], dist_autograd::RemoteModule(none.reference()), saved[1]};
  refusal(rpc::ErrorKind::invalid_argument, save(path(), wrong, saver));
  got(save(path(), {saved[0], saved[1]}, saver));
}

}  // namespace
}  // namespace weft::dist_optim::checkpoint_test
