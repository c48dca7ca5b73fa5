// RRefs and passes over tensors of a fake accelerator, whose streams execute only when a thread waits for
// them. docs/gpu.md lists the tests that have run on GPUs.
#include <weft/dist_autograd/module/remote_module.h>

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>

#include "tests/dist_autograd/pass_support.h"
#include "tests/support/fake_accelerator.h"

namespace weft::dist_autograd::device_test {

using namespace test;
using weft::test::FakeAccelerator;

namespace {

c10::Device fake(int index) { return FakeAccelerator::device(index); }
at::Tensor on(int index, const at::Tensor& tensor) { return tensor.to(fake(index)); }
FakeAccelerator& accelerator() { return FakeAccelerator::install(); }

// Returns a sum that the handler's stream computes asynchronously.
at::Tensor late_sum(at::Tensor a, at::Tensor b) {
  at::Tensor sum = at::empty(a.sizes(), a.options());
  accelerator().launch(a.device(), [sum, a, b] {
    const auto cpu = [](const at::Tensor& tensor) {
      return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.options().device(at::kCPU));
    };
    cpu(sum).copy_(cpu(a) + cpu(b));
  });
  return sum;
}
using LateSum = rpc::Function<"device.late_sum", &late_sum>;

at::Tensor made_on(std::string device) { return at::ones({300}).to(device); }
using MadeOn = rpc::Function<"device.made_on", &made_on>;

std::string device_of(at::Tensor x) { return x.device().str(); }
using DeviceOf = rpc::Function<"device.of", &device_of>;

// Creates results on another worker, fetches them, and forwards them.
struct Relay {
  rpc::Task<at::Tensor> fetched(std::string next, at::Tensor a) {
    const auto there = rref::remote<LateSum>(agent->peer(next), a, a);
    co_return co_await there.to_here();
  }
  rref::RRef<at::Tensor> kept(std::string next, at::Tensor a) {
    return rref::remote<LateSum>(agent->peer(next), a, a);
  }
  using Service = rpc::Service<"device.relay", rpc::Method<"fetched", &Relay::fetched>,
                               rpc::Method<"kept", &Relay::kept>>;
  rpc::Agent* agent;
};

tensor::DeviceOptions maps(std::initializer_list<std::pair<const char*, tensor::DeviceMap>> all) {
  tensor::DeviceOptions options;
  for (const auto& [peer, map] : all) options.map(peer, map);
  return options;
}

void serve(Cluster& cluster) {
  for (std::size_t i = 0; i < cluster.size(); ++i) {
    cluster[i].serve<LateSum>();
    cluster[i].serve<MadeOn>();
    cluster[i].serve<DeviceOf>();
    cluster[i].serve(std::make_shared<Relay>(Relay{&cluster[i]}));
  }
}

void expect_all(const at::Tensor& got, int device, double value) {
  EXPECT_EQ(got.device(), fake(device));
  EXPECT_TRUE(got.cpu().equal(at::full(got.sizes(), value, got.cpu().options()))) << got.cpu().flatten()[0];
}

}  // namespace

class DeviceRRefs : public ::testing::TestWithParam<std::pair<int, int>> {
 protected:
  // The test's parameters are the devices of the two workers.
  FakeAccelerator& installed = accelerator();
  int here = GetParam().first, there = GetParam().second;
  tensor::DeviceMap map{{fake(here).str(), fake(there).str()}};
  at::Tensor ones = on(here, at::ones({300}));
};

TEST_P(DeviceRRefs, ARemoteResultIsFetchedByTheMapAfterItsKernels) {
  Cluster cluster(2, {maps({{"worker1", map}})});
  serve(cluster);
  const auto kept = rref::remote<LateSum>(cluster.peer(0, 1), ones, ones);
  expect_all(kept.to_here().get(), here, 2);
}

// worker2 keeps its tensors on the first device. worker1 owns the result that worker2 gets as an argument.
TEST_P(DeviceRRefs, AnArgumentIsFetchedByTheMapOfTheCallee) {
  for (const bool lists_devices : {false, true}) {
    tensor::DeviceOptions user = maps({{"worker1", {{"fake:0", fake(there).str()}}}}), owner;
    if (lists_devices) user.devices = {fake(0)}, owner.devices = {fake(there)};
    Cluster cluster(3, {maps({{"worker1", map}, {"worker2", {{fake(here).str(), "fake:0"}}}}), owner, user});
    serve(cluster);
    const auto kept = rref::remote<LateSum>(cluster.peer(0, 1), ones, ones);
    EXPECT_EQ(cluster.peer(0, 2).call<DeviceOf>(kept).get(), "fake:0");
    expect_all(cluster.peer(0, 2).call<LateSum>(kept, kept).get(), here, 4);
  }
}

TEST_P(DeviceRRefs, AResultIsRelayedByAThirdWorker) {
  Cluster cluster(3, {maps({{"worker1", map}, {"worker2", map}}), maps({{"worker2", map.inverse()}})});
  serve(cluster);
  expect_all(cluster.peer(0, 1).call<&Relay::fetched>("worker2", ones).get(), here, 2);
}

TEST_P(DeviceRRefs, AReferenceIsForwardedByAThirdWorker) {
  // The object that worker1 creates at worker2 is on the same device as the tensors of the first caller.
  Cluster cluster(3, {maps({{"worker1", map}, {"worker2", {{fake(here).str(), fake(here).str()}}}}),
                      maps({{"worker2", map.inverse()}})});
  serve(cluster);
  const auto kept = cluster.peer(0, 1).call<&Relay::kept>("worker2", ones).get();
  expect_all(kept.to_here().get(), here, 2);
}

TEST_P(DeviceRRefs, CallsToTheOwnAgentUseTheMap) {
  if (here != there) map.add(fake(there), fake(here));
  Cluster cluster(1, {maps({{"worker0", map}})});
  serve(cluster);
  const auto kept = rref::remote<LateSum>(cluster.peer(0, 0), ones, ones);
  expect_all(kept.to_here().get(), here, 2);
  // The callee fetches the argument from its owner, and the result returns to the caller's device.
  expect_all(cluster.peer(0, 0).call<LateSum>(kept, kept).get(), there, 4);
}

INSTANTIATE_TEST_SUITE_P(Devices, DeviceRRefs,
                         ::testing::Values(std::pair{0, 0}, std::pair{0, 1}, std::pair{1, 0},
                                           std::pair{1, 1}));

class DeviceRRefErrors : public ::testing::Test {
 protected:
  FakeAccelerator& installed = accelerator();  // before maps name its devices
};

TEST_F(DeviceRRefErrors, AResultWithoutAMappedDeviceFailsItsFetch) {
  Cluster cluster(2, {maps({{"worker1", {{"fake:0", "fake:1"}}}})});
  serve(cluster);
  const auto kept = rref::remote<MadeOn>(cluster.peer(0, 1), "fake:3");
  EXPECT_EQ(test::kind_of([&] { kept.to_here().get(); }, "a tensor on fake:3 has no device at 'worker0'"),
            rpc::ErrorKind::failed_precondition);
  EXPECT_TRUE(rref::remote<MadeOn>(cluster.peer(0, 1), "cpu").to_here().get().is_cpu());
}

TEST_F(DeviceRRefErrors, WithoutAMapArgumentsAndResultsFail) {
  Cluster cluster(2);
  serve(cluster);
  const at::Tensor x = on(0, at::ones({2})), y = at::ones({2});
  const auto made = rref::remote<MadeOn>(cluster.peer(0, 1), "fake:0");
  EXPECT_EQ(test::kind_of([&] { rref::remote<DeviceOf>(cluster.peer(0, 1), x).to_here().get(); }),
            rpc::ErrorKind::failed_precondition);
  EXPECT_EQ(test::kind_of([&] { made.to_here().get(); }), rpc::ErrorKind::failed_precondition);
  EXPECT_EQ(rref::remote<DeviceOf>(cluster.peer(0, 1), y).to_here().get(), "cpu") << "other calls go on";
}

TEST_F(DeviceRRefErrors, AnArgumentWithoutAMappedDeviceFailsTheRRef) {
  Cluster cluster(2, {maps({{"worker1", {{"fake:0", "fake:1"}}}})});
  serve(cluster);
  const at::Tensor lost = on(2, at::ones({2}));
  EXPECT_EQ(test::kind_of([&] { rref::remote<LateSum>(cluster.peer(0, 1), lost, lost).to_here().get(); },
                          "a tensor on fake:2 has no device at 'worker1'"),
            rpc::ErrorKind::failed_precondition);
  EXPECT_TRUE(rref::remote<MadeOn>(cluster.peer(0, 1), "cpu").to_here().get().is_cpu());
}

// --- Concurrent results, options, views ---

struct Relays {
  rpc::Task<std::vector<at::Tensor>> many(std::string next, at::Tensor a) {
    std::vector<rpc::Future<at::Tensor>> sums;
    for (int i = 0; i < 10; ++i) sums.push_back(agent->peer(next).call<LateSum>(a + i, a));
    std::vector<at::Tensor> results;
    for (auto& sum : sums) results.push_back(co_await std::move(sum));
    co_return results;
  }
  using Service = rpc::Service<"device.relays", rpc::Method<"many", &Relays::many>>;
  rpc::Agent* agent;
};

TEST_P(DeviceRRefs, ManyResultsAreRelayedByAThirdWorkerAtOnce) {
  Cluster cluster(3, {maps({{"worker1", map}, {"worker2", map}}), maps({{"worker2", map.inverse()}})});
  serve(cluster);
  cluster[1].serve(std::make_shared<Relays>(Relays{&cluster[1]}));
  std::vector<rpc::Future<std::vector<at::Tensor>>> calls;
  for (int i = 0; i < 5; ++i) calls.push_back(cluster.peer(0, 1).call<&Relays::many>("worker2", ones * i));
  for (int i = 0; i < 5; ++i) {
    const auto results = calls[i].get();
    ASSERT_EQ(results.size(), 10U);
    for (int j = 0; j < 10; ++j) expect_all(results[j], here, 2 * i + j);
  }
}

// The handler chooses the stream, and the stream of the call waits for it.
at::Tensor sum_on_another_stream(at::Tensor a, at::Tensor b) {
  const c10::Stream call = accelerator().current(a.device());
  const c10::Stream other(c10::Stream::UNSAFE, a.device(), 1 + (call.id() + 3) % FakeAccelerator::pooled);
  c10::Event given(a.device().type()), made(a.device().type());
  given.record(call);
  other.wait(given);
  at::Tensor sum;
  {
    const c10::StreamGuard guard(other);
    sum = late_sum(a, b);
  }
  made.record(other);
  call.wait(made);
  return sum;
}
using SumOnAnotherStream = rpc::Function<"device.sum_on_another_stream", &sum_on_another_stream>;

TEST_P(DeviceRRefs, HandlersMayComputeResultsOnTheirOwnStreams) {
  Cluster cluster(2, {maps({{"worker1", map}})});
  cluster[1].serve<SumOnAnotherStream>();
  std::vector<rpc::Future<at::Tensor>> sums;
  for (int i = 0; i < 20; ++i) {
    const at::Tensor x = ones * i;
    sums.push_back(cluster.peer(0, 1).call<SumOnAnotherStream>(x, x));
  }
  for (int i = 0; i < 20; ++i) expect_all(sums[i].get(), here, 2 * i);
}

// A view of every second column of a tensor that the handler's stream has not computed yet.
at::Tensor late_view(at::Tensor x) { return late_sum(x, x).view({3, 100}).t().slice(0, 0, 100, 2); }
using LateView = rpc::Function<"device.late_view", &late_view>;

TEST_P(DeviceRRefs, AViewIsReadAfterItsKernels) {
  Cluster cluster(2, {maps({{"worker1", map}})});
  cluster[1].serve<LateView>();
  const at::Tensor x = on(here, at::arange(300, at::kFloat));
  const at::Tensor expected = (2 * at::arange(300, at::kFloat)).view({3, 100}).t().slice(0, 0, 100, 2);
  const at::Tensor result = cluster.peer(0, 1).call<LateView>(x).get();
  EXPECT_EQ(result.device(), fake(here));
  EXPECT_TRUE(result.cpu().equal(expected));
  EXPECT_TRUE(rref::remote<LateView>(cluster.peer(0, 1), x).to_here().get().cpu().equal(expected));
}

// --- Modules ---

// Moves its tensor itself, because the devices of the tests do not support LibTorch's method (set_data).
struct Scale : torch::nn::Module {
  explicit Scale(double by) : factor(torch::full({1}, by)) {}
  void to(at::Device device, bool) override { factor = factor.to(device); }
  at::Tensor forward(at::Tensor x) {
    if (x.device() != factor.device())
      throw rpc::Error(rpc::ErrorKind::invalid_argument, x.device().str() + " and " + factor.device().str());
    return x * factor;
  }
  at::Tensor factor;
  using Service =
      rpc::Service<"device.scale", rpc::Constructor<double>, rpc::Method<"forward", &Scale::forward>>;
};

class DeviceModules : public ::testing::Test {
 protected:
  FakeAccelerator& installed = accelerator();
};

TEST_F(DeviceModules, AreCreatedOnADeviceAndCallsFollowTheMap) {
  for (const char* device : {"fake:2", "fake", "cpu"}) {
    const std::string full = device == std::string("fake") ? "fake:0" : device;
    Cluster cluster(2, {full == "cpu" ? tensor::DeviceOptions() : maps({{"worker1", {{"cpu", full}}}})});
    cluster[1].allow_create<Scale>();
    const auto module = create_module<Scale>(cluster.peer(0, 1), device, 3.0).get();
    const at::Tensor result = module.call<&Scale::forward>(at::ones({2})).get();
    EXPECT_TRUE(result.is_cpu());
    EXPECT_TRUE(result.equal(at::full({2}, 3.0))) << full;
  }
}

TEST_F(DeviceModules, OnAMissingDeviceAreRefused) {
  tensor::DeviceOptions given;
  given.devices = {fake(0), fake(1)};
  Cluster cluster(2, {{}, given});
  cluster[1].allow_create<Scale>();
  const auto error_on = [&](const char* device, const char* words) {
    return test::kind_of([&] { create_module<Scale>(cluster.peer(0, 1), device, 3.0).get(); }, words);
  };
  EXPECT_EQ(error_on("moon:1", "not a device: 'moon:1'"), rpc::ErrorKind::invalid_argument);
  EXPECT_EQ(error_on("fake:x", "not a device: 'fake:x'"), rpc::ErrorKind::invalid_argument);
  EXPECT_EQ(error_on("fake:9", "fake:9, but this host has 4 such devices"), rpc::ErrorKind::invalid_argument);
  EXPECT_EQ(error_on("fake:3", "not among the devices of this agent"), rpc::ErrorKind::invalid_argument);
}

// --- Passes ---

// x is multiplied by the weights of several workers. `reference` computes the same result in this process, on
// the CPU.
class DevicePasses : public ::testing::Test {
 protected:
  FakeAccelerator& installed = accelerator();
  at::Tensor x = matrix(), w1 = matrix(), w2 = matrix();
};

TEST_F(DevicePasses, OfOneWorker) {
  Cluster cluster(1, {maps({})});
  const at::Tensor leaf = on(0, x).requires_grad_();
  Pass pass(cluster[0]);
  pass.backward((leaf * leaf).sum()).get();
  EXPECT_EQ(pass.gradient(leaf).device(), fake(0));
  expect_equal(pass.gradient(leaf).cpu(), 2 * x, "x");
}

// worker1 has no device map. Its gradients return by the inverse of the caller's map.
TEST_F(DevicePasses, GradientsFollowTheInverseOfTheMap) {
  Cluster cluster(2, {maps({{"worker1", {{"fake:0", "fake:1"}, {"fake:1", "fake:0"}}}})});
  const auto weights = rref::create<Weights>(cluster.peer(0, 1), on(0, w1));
  const at::Tensor leaf = on(0, x).requires_grad_();
  Pass pass(cluster[0]);
  const at::Tensor y = weights.call<&Weights::multiply>(pass, leaf).get();
  EXPECT_EQ(y.device(), fake(0));
  pass.backward(y.sum()).get();

  const at::Tensor x0 = x.clone().requires_grad_(), w0 = w1.clone().requires_grad_();
  x0.mm(w0).tanh().sum().backward();
  EXPECT_EQ(pass.gradient(leaf).device(), fake(0));
  expect_equal(pass.gradient(leaf).cpu(), x0.grad(), "x");
  const at::Tensor of_w = weights.call<&Weights::gradient>(pass.id()).get();
  EXPECT_EQ(of_w.device(), fake(0)) << "from fake:1 there";
  expect_equal(of_w.cpu(), w0.grad(), "w");
}

TEST_F(DevicePasses, OverAChainOfWorkers) {
  Cluster cluster(3, {maps({{"worker1", {{"fake:0", "fake:1"}}}, {"worker2", {{"fake:0", "fake:2"}}}}),
                      maps({{"worker2", {{"fake:1", "fake:2"}}}})});
  const auto first = rref::create<Weights>(cluster.peer(0, 1), on(0, w1)),
             second = rref::create<Weights>(cluster.peer(0, 2), on(0, w2));
  const at::Tensor leaf = on(0, x).requires_grad_();
  Pass pass(cluster[0]);
  const at::Tensor y = first.call<&Weights::through>(pass, second, leaf).get();
  pass.backward(y.sum()).get();

  const at::Tensor x0 = x.clone().requires_grad_(), a = w1.clone().requires_grad_(),
                   b = w2.clone().requires_grad_();
  const at::Tensor here = x0.mm(a).sin();
  (here.mm(b).tanh() + here).sum().backward();
  expect_equal(y.cpu(), here.mm(b).tanh() + here, "y");
  expect_equal(pass.gradient(leaf).cpu(), x0.grad(), "x");
  expect_equal(first.call<&Weights::gradient>(pass.id()).get().cpu(), a.grad(), "first");
  expect_equal(second.call<&Weights::gradient>(pass.id()).get().cpu(), b.grad(), "second");
}

class MixedPass : public DevicePasses, public ::testing::WithParamInterface<bool> {};

// The forward uses an accelerator, the CPU, the CPU of another worker, and the accelerator again.
TEST_P(MixedPass, UsesTheCpuAndAnAccelerator) {
  const bool root_on_cpu = GetParam();
  Cluster cluster(2, {maps({})});
  const auto weights = rref::create<Weights>(cluster.peer(0, 1), w1);
  const at::Tensor leaf = on(0, x).requires_grad_(), beside = on(1, x).requires_grad_();
  Pass pass(cluster[0]);
  const at::Tensor there = weights.call<&Weights::multiply>(pass, leaf.mm(leaf).cpu()).get();
  const at::Tensor sum = (on(1, there) * beside).sum();
  pass.backward(root_on_cpu ? sum.cpu() : sum).get();

  const at::Tensor x0 = x.clone().requires_grad_(), x1 = x.clone().requires_grad_(),
                   w0 = w1.clone().requires_grad_();
  (x0.mm(x0).mm(w0).tanh() * x1).sum().backward();
  EXPECT_EQ(pass.gradient(leaf).device(), fake(0));
  EXPECT_EQ(pass.gradient(beside).device(), fake(1));
  expect_equal(pass.gradient(leaf).cpu(), x0.grad(), "x");
  expect_equal(pass.gradient(beside).cpu(), x1.grad(), "beside");
  expect_equal(weights.call<&Weights::gradient>(pass.id()).get(), w0.grad(), "w");
}
INSTANTIATE_TEST_SUITE_P(Roots, MixedPass, ::testing::Values(true, false));

// The streams compute the results of forward and backward asynchronously.
struct LateTwice : torch::autograd::Function<LateTwice> {
  static at::Tensor twice(const at::Tensor& x) { return late_sum(x.contiguous(), x.contiguous()); }
  static at::Tensor forward(torch::autograd::AutogradContext*, at::Tensor x) { return twice(x); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    return {twice(gradients[0])};
  }
};
at::Tensor late_twice(at::Tensor x) { return LateTwice::apply(x); }
using LateTwiceThere = rpc::Function<"device.late_twice", &late_twice>;

TEST_F(DevicePasses, GradientsWaitForTheStreamsThatComputeThem) {
  Cluster cluster(2, {maps({{"worker1", {{"fake:0", "fake:1"}}}})});
  cluster[1].serve<LateTwiceThere>();
  const at::Tensor leaf = on(0, x).requires_grad_();
  for (int round = 0; round < 10; ++round) {
    Pass pass(cluster[0]);
    const at::Tensor y = cluster.peer(0, 1).call<LateTwiceThere>(pass, LateTwice::apply(leaf)).get();
    pass.backward(LateTwice::apply(y).sum()).get();
    expect_equal(y.cpu(), 4 * x, "y");
    expect_equal(pass.gradient(leaf).cpu(), at::full_like(x, 8), "x");
  }
  EXPECT_EQ(accelerator().device_waits(), 0U);
}

c10::Stream stream_on(int device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, fake(device), id);
}

// Nothing else refers to the gradient, not even the task that writes it. The pass therefore keeps it without
// a copy.
struct LateOnes : torch::autograd::Function<LateOnes> {
  static at::Tensor forward(torch::autograd::AutogradContext*, at::Tensor x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    at::Tensor late = at::empty(gradients[0].sizes(), gradients[0].options());
    accelerator().launch(late.device(), [memory = at::from_blob(late.data_ptr(), late.sizes(), at::kDouble)] {
      memory.fill_(1);
    });
    return {late};
  }
};

TEST_F(DevicePasses, AGradientIsReadyOnTheStreamsOfItsReader) {
  Cluster cluster(1, {maps({})});
  const at::Tensor leaf = on(0, x).requires_grad_();
  Pass pass(cluster[0]);
  const auto backward = [&] {
    at::Tensor sum;
    {
      const c10::StreamGuard writer(stream_on(0, 3));
      sum = LateOnes::apply(leaf).sum();
    }
    pass.backward(sum).get();
    EXPECT_GT(accelerator().pending(stream_on(0, 3)), 0U) << "nothing has waited for the gradient";
  };
  backward();
  {
    const c10::StreamGuard reader(stream_on(0, 5));
    expect_equal(pass.gradient(leaf).cpu(), at::ones_like(x), "gradient()");
  }
  pass = Pass(cluster[0]);
  backward();
  const c10::StreamGuard reader(stream_on(0, 6));
  expect_equal(pass.gradients().at(0).gradient.cpu(), at::ones_like(x), "gradients()");
}

at::Tensor late_second(at::Tensor, at::Tensor b) { return LateTwice::apply(b); }
using LateSecond = rpc::Function<"device.late_second", &late_second>;

// A message has tensors of two devices, and its node runs on a stream of the first device. The gradient of
// the second tensor is sent from another stream.
TEST_F(DevicePasses, GradientsOfSeveralDevicesAreSentWhenTheyAreReady) {
  Cluster cluster(2, {maps({{"worker1", {{"fake:0", "fake:2"}, {"fake:1", "fake:3"}}}})});
  cluster[1].serve<LateSecond>();
  const at::Tensor a = on(0, x).requires_grad_(), b = on(1, x).requires_grad_();
  Pass pass(cluster[0]);
  const at::Tensor y = cluster.peer(0, 1).call<LateSecond>(pass, a, b).get();
  pass.backward(y.sum()).get();
  EXPECT_FALSE(pass.gradient(a).defined());
  expect_equal(pass.gradient(b).cpu(), at::full_like(x, 2), "b");
}

}  // namespace weft::dist_autograd::device_test
