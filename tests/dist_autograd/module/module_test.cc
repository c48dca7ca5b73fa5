// RemoteModule: the functions that every module behind an RRef has without declaring them.
#include <weft/dist_autograd/module/internal/module_service.h>
#include <weft/dist_autograd/module/remote_module.h>
#include <weft/rpc/testing/wait.h>
#include <weft/rref/listing.h>

#include "tests/dist_autograd/pass_support.h"

namespace weft::dist_autograd::module_test {
namespace {

using rpc::ErrorKind;
using test::Cluster;

// Declares only its forward.
struct Net : torch::nn::Module {
  Net() {
    linear = register_module("linear", torch::nn::Linear(3, 2));
    norm = register_module("norm", torch::nn::BatchNorm1d(2));
    to(at::kDouble);
  }
  at::Tensor forward(at::Tensor x) { return norm(linear(x)); }
  torch::nn::Linear linear{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  using Service = rpc::Service<"module_test.net", rpc::Method<"forward", &Net::forward>>;
};
struct NoModule {
  std::int64_t one() { return 1; }
  using Service = rpc::Service<"module_test.none", rpc::Method<"one", &NoModule::one>>;
};
struct Other : torch::nn::Module {
  Other() { weight = register_parameter("weight", torch::ones({2})); }
  at::Tensor get() { return weight; }
  at::Tensor weight;
  using Service = rpc::Service<"module_test.other", rpc::Method<"get", &Other::get>>;
};

// Draws its parameters as modules do. Other modules may draw between the draws. If the seed is below 0, the
// constructor sets no seed.
struct Drawn : torch::nn::Module {
  explicit Drawn(std::int64_t seed) {
    if (seed >= 0) torch::manual_seed(static_cast<std::uint64_t>(seed));
    for (int i = 0; i < 20; ++i) {
      register_parameter("p" + std::to_string(i), torch::randn({2}));
      std::this_thread::yield();
    }
  }
  at::Tensor values() { return torch::stack(parameters()).detach(); }
  using Service = rpc::Service<"module_test.drawn", rpc::Constructor<std::int64_t>,
                               rpc::Method<"values", &Drawn::values>>;
};

// The constructor waits for the test.
struct Gated : torch::nn::Module {
  struct Gate {
    weft::test::Event entered, opened;
  };
  static inline std::shared_ptr<Gate> gate;  // of the current test

  Gated() {
    gate->entered.set();
    gate->opened.wait();
  }
  using Service = rpc::Service<"module_test.gated">;
};

std::int64_t one() { return 1; }
using One = rpc::Function<"module_test.one", &one>;

template <class F>
void expect_error(ErrorKind kind, const std::string& words, F&& f) {
  EXPECT_EQ(test::kind_of(f, words), kind);
}

std::vector<std::string> names_of(const StateDict& state) {
  std::vector<std::string> names;
  for (const auto& entry : state) names.push_back(entry.name);
  return names;
}
at::Tensor find(const StateDict& state, const std::string& name) {
  for (const auto& entry : state)
    if (entry.name == name) return entry.tensor;
  return {};
}

class ModuleTest : public ::testing::Test {
 protected:
  void SetUp() override {
    at::set_num_threads(1);
    for (std::size_t i = 0; i < 2; ++i) {
      workers[i].allow_create<Net>();
      workers[i].allow_create<Other>();
      workers[i].allow_create<NoModule>();
    }
    net = rref::create<Net>(workers.peer(0, 1));
    net.ready().get();
  }
  Cluster workers{2};
  rref::RRef<Net> net;
};

TEST_F(ModuleTest, TrainAndEval) {
  const RemoteModule module{net};
  EXPECT_TRUE(module.is_training().get());
  module.eval().get();
  EXPECT_FALSE(module.is_training().get());
  const at::Tensor x = torch::ones({1, 3}, at::kDouble);
  net.call<&Net::forward>(x).get();  // batch norm refuses a single row while it trains
  module.train().get();
  EXPECT_TRUE(module.is_training().get());
  expect_error(ErrorKind::handler_failed, "more than 1 value per channel",
               [&] { net.call<&Net::forward>(x).get(); });
}

TEST_F(ModuleTest, HandlesAccumulateOptions) {
  const RemoteModule late = RemoteModule{net}.with({.timeout = std::chrono::nanoseconds{1}});
  const RemoteModule both = late.with({.idempotent = true}).with_metadata({{"tenant", "a"}});
  expect_error(ErrorKind::deadline_exceeded, "module", [&] { both.is_training().get(); });
  EXPECT_TRUE(both.with({.timeout = rpc::no_timeout}).is_training().get());
}

TEST_F(ModuleTest, StateTravelsByValueUnderItsNames) {
  const RemoteModule module{net};
  const StateDict state = module.state_dict().get();
  EXPECT_EQ(names_of(state),
            (std::vector<std::string>{"linear.weight", "linear.bias", "norm.weight", "norm.bias",
                                      "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}));
  EXPECT_EQ(names_of(module.named_parameters().get()),
            (std::vector<std::string>{"linear.weight", "linear.bias", "norm.weight", "norm.bias"}));
  EXPECT_EQ(names_of(module.named_buffers().get()),
            (std::vector<std::string>{"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}));
  find(state, "linear.weight").zero_();  // a copy
  EXPECT_GT(find(module.state_dict().get(), "linear.weight").abs().sum().item<double>(), 0);

  const auto other = rref::create<Net>(workers.peer(1, 0));
  RemoteModule{other}.load_state_dict(module.state_dict().get()).get();
  const StateDict loaded = RemoteModule{other}.state_dict().get();
  for (const auto& [name, tensor] : module.state_dict().get())
    EXPECT_TRUE(tensor.equal(find(loaded, name))) << name;
}

TEST_F(ModuleTest, ALoadIsAllOrNothing) {
  const RemoteModule module{net};
  const StateDict before = module.state_dict().get();
  const auto refused = [&](StateDict state, ErrorKind kind, const std::string& words) {
    for (auto& entry : state)
      if (entry.name == "linear.weight") entry.tensor = torch::full({2, 3}, 7.0, at::kDouble);
    expect_error(kind, words, [&] { module.load_state_dict(state).get(); });
    EXPECT_TRUE(find(module.state_dict().get(), "linear.weight").equal(find(before, "linear.weight")))
        << words;
  };
  StateDict wrong = before;
  wrong.back().tensor = torch::zeros({4});
  refused(wrong, ErrorKind::invalid_argument, "'norm.num_batches_tracked' is of shape [], not [4]");
  wrong = before;
  wrong.back().tensor = torch::zeros({}, at::kComplexDouble);
  refused(wrong, ErrorKind::invalid_argument, "to which complex128 is not cast");
  wrong = before;
  wrong.back().name = "norm.more";
  refused(wrong, ErrorKind::invalid_argument, "missing: norm.num_batches_tracked; unexpected: norm.more");
  wrong = before;
  wrong.push_back(before.front());
  refused(wrong, ErrorKind::invalid_argument, "'linear.weight' is given twice");
  wrong = before;
  wrong.back().tensor = at::Tensor();
  refused(wrong, ErrorKind::invalid_argument, "defined on one side only");

  wrong = before;
  wrong.back().name = "norm.more";
  find(wrong, "linear.weight").fill_(7);
  const LoadedState loaded = module.load_state_dict(wrong, false).get();
  EXPECT_EQ(loaded.missing, (std::vector<std::string>{"norm.num_batches_tracked"}));
  EXPECT_EQ(loaded.unexpected, (std::vector<std::string>{"norm.more"}));
  EXPECT_EQ(find(module.state_dict().get(), "linear.weight").sum().item<double>(), 42);
}

TEST_F(ModuleTest, ALoadUnderAnOpenPassFailsItsBackward) {
  Pass pass{workers[0]};
  const at::Tensor x = torch::randn({4, 3}, at::kDouble).requires_grad_();
  const at::Tensor loss = net.call<&Net::forward>(pass, x).get().square().sum();
  RemoteModule{net}.load_state_dict(RemoteModule{net}.state_dict().get()).get();
  test::kind_of([&] { pass.backward(loss).get(); }, "inplace operation");
}

TEST_F(ModuleTest, MovesToAnotherType) {
  const RemoteModule module{net};
  module.to(std::nullopt, "float32").get();
  EXPECT_EQ(find(module.state_dict().get(), "linear.weight").scalar_type(), at::kFloat);
  module.to("cpu", "float64").get();
  module.to("cpu").get();
  EXPECT_EQ(find(module.state_dict().get(), "linear.weight").scalar_type(), at::kDouble);
  net.call<&Net::forward>(torch::randn({4, 3}, at::kDouble)).get();
  expect_error(ErrorKind::invalid_argument, "not a device: 'moon'", [&] { module.to("moon").get(); });
  expect_error(ErrorKind::invalid_argument, "cannot have the dtype int64",
               [&] { module.to({}, "int64").get(); });
  expect_error(ErrorKind::unsupported, "", [&] { module.to({}, "float7").get(); });
}

TEST_F(ModuleTest, ParametersBehindRRefs) {
  const RemoteModule module{net};
  auto parameters = module.remote_parameters().get();
  ASSERT_EQ(parameters.size(), 4U);
  EXPECT_EQ(parameters[0].name, "linear.weight");
  EXPECT_EQ(parameters[0].tensor.owner(), workers[1].id());
  EXPECT_TRUE(parameters[0].tensor.to_here().get().equal(find(module.state_dict().get(), "linear.weight")));
  StateDict state = module.state_dict().get();
  find(state, "linear.weight").fill_(7);
  module.load_state_dict(state).get();
  EXPECT_EQ(parameters[0].tensor.to_here().get().sum().item<double>(), 42) << "the very tensor";
  const auto buffers = module.remote_buffers().get();
  ASSERT_EQ(buffers.size(), 3U);
  EXPECT_EQ(buffers[0].name, "norm.running_mean");

  // If a parameter is fetched in a pass, its gradient is on its owner.
  Pass pass{workers[0]};
  const at::Tensor bias = parameters[1].tensor.to_here(pass).get();
  pass.backward((bias * 3).sum()).get();
  const auto leaves = AutogradLayer::of(*workers[1].core())->find(pass.id())->gradients();
  ASSERT_EQ(leaves.size(), 1U);
  EXPECT_TRUE(leaves[0].gradient.equal(torch::full({2}, 3.0, at::kDouble)));

  // On the owner, the fetched tensor is the module's own tensor.
  const auto mine = std::make_shared<Net>();
  const auto own = rref::local(workers[0], mine);
  const auto own_parameters = RemoteModule{own}.remote_parameters().get();
  EXPECT_TRUE(own_parameters[0].tensor.local().get()->is_same(mine->linear->weight));
}

TEST_F(ModuleTest, AParameterKeepsItsModuleAlive) {
  auto parameters = RemoteModule{net}.remote_parameters().get();
  const auto bias = parameters[1].tensor;
  parameters.clear();
  net = {};
  EXPECT_EQ(bias.to_here().get().numel(), 2);
}

TEST_F(ModuleTest, GradientsAreZeroedAndDisabled) {
  const auto mine = std::make_shared<Net>();
  const auto own = rref::local(workers[0], mine);
  const RemoteModule module{own};
  mine->forward(torch::randn({4, 3}, at::kDouble)).square().sum().backward();
  module.zero_grad(false).get();
  ASSERT_TRUE(mine->linear->weight.grad().defined());
  EXPECT_EQ(mine->linear->weight.grad().abs().sum().item<double>(), 0);
  module.zero_grad().get();
  EXPECT_FALSE(mine->linear->weight.grad().defined());
  module.requires_grad(false).get();
  EXPECT_FALSE(mine->linear->weight.requires_grad());
  module.requires_grad(true).get();
  EXPECT_TRUE(mine->norm->bias.requires_grad());
}

TEST_F(ModuleTest, TheOwnersGeneratorIsSeeded) {
  RemoteModule{net}.manual_seed(42).get();
  const at::Tensor first = torch::randn({4});  // the owner is in this process
  RemoteModule{net}.manual_seed(42).get();
  EXPECT_TRUE(torch::randn({4}).equal(first));
}

TEST_F(ModuleTest, AnObjectOfAnotherTypeIsRefused) {
  const auto none = rref::create<NoModule>(workers.peer(0, 1));
  expect_error(ErrorKind::invalid_argument, "not an object of type module_test.none",
               [&] { RemoteModule{none.reference()}.state_dict().get(); });
  expect_error(ErrorKind::invalid_argument, "names no object",
               [&] { workers.peer(0, 1).call<&ModuleService::train>(true).get(); });
}

TEST_F(ModuleTest, ALostOwnerIsReported) {
  workers.kill(1);
  expect_error(ErrorKind::owner_lost, "worker1", [&] { RemoteModule{net}.state_dict().get(); });
}

TEST_F(ModuleTest, ListingsContainTheSizesOfTensorsAndModules) {
  const auto other = rref::create<Other>(workers.peer(0, 1));
  other.ready().get();
  const auto tensor = rref::local(workers[1], torch::zeros({5}, at::kDouble));
  std::map<std::string, std::optional<std::uint64_t>> bytes;
  for (const auto& object : rref::list(workers.peer(0, 1)).get().objects) bytes[object.type] = object.bytes;
  EXPECT_EQ(bytes.at("module_test.other"), 8U);
  EXPECT_EQ(bytes.at("tensor"), 40U);
  EXPECT_EQ(bytes.at("module_test.net"), (6 + 2 + 2 + 2 + 2 + 2) * 8U + 8U);
}

// Each owner has two handler threads, which could run two constructors concurrently.
TEST(ModuleCreation, DrawsTheNumbersOfASeed) {
  Cluster cluster(3);
  for (std::size_t owner : {0, 1}) cluster[owner].allow_create<Drawn>();
  const rpc::Peer owners[] = {cluster.peer(2, 0), cluster.peer(2, 1)};
  std::vector<at::Tensor> in_order, seeded;
  torch::manual_seed(5);
  for (int i = 0; i < 16; ++i) in_order.push_back(Drawn(-1).values());
  for (int i = 0; i < 16; ++i) seeded.push_back(Drawn(i).values());

  torch::manual_seed(5);
  std::vector<rref::RRef<Drawn>> drawn;
  for (int i = 0; i < 16; ++i) drawn.push_back(rref::create<Drawn>(owners[0], std::int64_t{-1}));
  for (std::size_t i = 0; i < drawn.size(); ++i)
    EXPECT_TRUE(torch::equal(weft::test::got(drawn[i].call<&Drawn::values>()), in_order[i])) << i;

  drawn.clear();
  for (int i = 0; i < 16; ++i) drawn.push_back(rref::create<Drawn>(owners[i % 2], std::int64_t{i}));
  for (std::size_t i = 0; i < drawn.size(); ++i)
    EXPECT_TRUE(torch::equal(weft::test::got(drawn[i].call<&Drawn::values>()), seeded[i])) << i;
}

TEST(ModuleCreation, LeavesTheOtherHandlerThreadFree) {
  Cluster cluster(2);
  cluster[0].allow_create<Gated>();
  cluster[0].serve<One>();
  Gated::gate = std::make_shared<Gated::Gate>();
  const rpc::Peer owner = cluster.peer(1, 0);
  const auto first = rref::create<Gated>(owner), second = rref::create<Gated>(owner);
  Gated::gate->entered.wait();
  EXPECT_EQ(weft::test::got(owner.call<One>()), 1) << "it was called after both creations";
  Gated::gate->opened.set();
  weft::test::got(first.ready());
  weft::test::got(second.ready());
}

}  // namespace
}  // namespace weft::dist_autograd::module_test
