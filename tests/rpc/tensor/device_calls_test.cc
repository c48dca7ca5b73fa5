// Tensors of a fake accelerator in calls. Its streams execute only when a thread waits for them. docs/gpu.md
// lists the tests that have run on GPUs.
#include <weft/rpc/tensor/device_layer.h>
#include <weft/rpc/tensor/device_slots.h>
#include <weft/rpc/tensor/layers.h>
#include <weft/rpc/tensor/operators.h>

#include <c10/core/StreamGuard.h>
#include <torch/torch.h>

#include <ostream>

#include "tests/support/cluster.h"
#include "tests/support/fake_accelerator.h"
#include "tests/support/messages.h"

namespace weft::tensor::device_calls_test {
namespace {

using namespace test;

c10::Device fake(int index) { return FakeAccelerator::device(index); }
at::Tensor on(const std::string& device, const at::Tensor& tensor) { return tensor.to(device); }
// Reads in order on the current stream of the device, as LibTorch's kernels do.
bool same(const at::Tensor& a, const at::Tensor& b) { return a.cpu().equal(b.cpu()); }

// A stream that is not its device's default one.
c10::Stream other_stream(int index, c10::StreamId id = FakeAccelerator::pooled + 1) {
  return c10::Stream(c10::Stream::UNSAFE, fake(index), id);
}

struct Devices {
  at::Tensor add(at::Tensor x, at::Tensor y, std::string x_on, std::string y_on, std::string result_on) {
    if (x.device().str() != x_on || y.device().str() != y_on)
      throw rpc::Error(rpc::ErrorKind::invalid_argument,
                       "arguments on " + x.device().str() + " and " + y.device().str());
    return x.to(result_on) + y.to(result_on);
  }
  at::Tensor back(at::Tensor x) { return x; }
  std::string device_of(at::Tensor x) { return x.device().str(); }
  at::Tensor made_on(std::string device) { return at::ones({2}).to(device); }
  std::vector<at::Tensor> many(std::vector<at::Tensor> given) {
    std::vector<at::Tensor> results;
    for (const at::Tensor& each : given) results.push_back(each + 1);
    return results;
  }
  // Its result is computed asynchronously on the handler's stream.
  at::Tensor late(at::Tensor x) {
    at::Tensor result = at::empty(x.sizes(), x.options());
    FakeAccelerator::install().launch(x.device(), [] {});
    FakeAccelerator::install().fill_later(result, 7);
    return result;
  }
  rpc::Task<at::Tensor> late_twice(at::Tensor x) {
    at::Tensor result = late(x);
    const auto stream = FakeAccelerator::install().current(x.device()).id();
    rpc::Promise<int> promise;
    auto later = promise.future();
    std::thread([promise = std::move(promise)]() mutable { promise.complete(1); }).join();
    co_await std::move(later);
    if (FakeAccelerator::install().current(x.device()).id() != stream)
      throw rpc::Error(rpc::ErrorKind::internal, "another stream after the suspension");
    FakeAccelerator::install().fill_later(result, 8);
    co_return result;
  }
  std::int64_t stream_of(at::Tensor x) { return FakeAccelerator::install().current(x.device()).id(); }
  double sum(at::Tensor x) { return x.sum().item<double>(); }
  at::Tensor mixed(at::Tensor x, at::Tensor y) {
    TORCH_CHECK(x.device() == y.device(), "Expected all tensors to be on the same device");
    return x + y;
  }
  // A tensor that a handler keeps for the next call.
  void keep(at::Tensor x) { kept = late(x); }
  double kept_sum() {
    return FakeAccelerator::install().pending_jobs() == 0 ? kept.sum().item<double>() : -1;
  }
  at::Tensor kept;

  using Service =
      rpc::Service<"devices", rpc::Method<"add", &Devices::add>, rpc::Method<"back", &Devices::back>,
                   rpc::Method<"device_of", &Devices::device_of>, rpc::Method<"made_on", &Devices::made_on>,
                   rpc::Method<"many", &Devices::many>, rpc::Method<"late", &Devices::late>,
                   rpc::Method<"late_twice", &Devices::late_twice>,
                   rpc::Method<"stream_of", &Devices::stream_of>, rpc::Method<"sum", &Devices::sum>,
                   rpc::Method<"mixed", &Devices::mixed>, rpc::Method<"keep", &Devices::keep>,
                   rpc::Method<"kept_sum", &Devices::kept_sum>>;
};

class DeviceCalls : public ::testing::Test {
 protected:
  void make(const DeviceMap& map, const DeviceOptions& of_callee = {}) {
    DeviceOptions options;
    options.map("there", map);
    cluster.add("here", layers(options));
    cluster.add("there", layers(of_callee));
    cluster["there"].serve(std::make_shared<Devices>());
  }
  rpc::Peer there() { return cluster.peer("here", "there"); }
  FakeAccelerator& accelerator = FakeAccelerator::install();
  test::Cluster cluster{{}};
};

// --- Placement of tensors ---

struct Placing {
  const char *x_from, *y_from, *result_on;
  std::vector<std::pair<std::string, std::string>> map;
  friend void PrintTo(const Placing& p, std::ostream* out) {
    *out << p.x_from << ", " << p.y_from << ", result on " << p.result_on << " there, map";
    for (const auto& [here, there] : p.map) *out << " " << here << ">" << there;
  }
};

class DevicePlacing : public ::testing::TestWithParam<Placing> {
 protected:
  static void add_up(const std::string& peer) {
    FakeAccelerator::install();
    const Placing& given = GetParam();
    DeviceMap map;
    for (const auto& [here, there] : given.map) map.add_named(here, there);
    DeviceOptions options;
    options.map(peer, map);
    test::Cluster cluster{{}};
    cluster.add("here", layers(options));
    if (peer != "here") cluster.add(peer, layers());
    cluster[peer].serve(std::make_shared<Devices>());
    const auto at = [&](const char* device) { return map.find(device_from_name(device))->str(); };
    const at::Tensor result =
        got(cluster.peer("here", peer)
                .call<&Devices::add>(on(given.x_from, at::zeros({2})), on(given.y_from, at::ones({2})),
                                     at(given.x_from), at(given.y_from), given.result_on));
    EXPECT_EQ(result.device(), map.inverse().find(device_from_name(given.result_on)));
    EXPECT_TRUE(same(result, at::ones({2})));
  }
};

TEST_P(DevicePlacing, ArgumentsFollowTheMapAndResultsItsInverse) { add_up("there"); }
TEST_P(DevicePlacing, ArgumentsAndResultsFollowTheMapWithinOneAgent) { add_up("here"); }

INSTANTIATE_TEST_SUITE_P(
    Maps, DevicePlacing,
    ::testing::Values(Placing{"cpu", "cpu", "cpu", {{"cpu", "cpu"}}},
                      Placing{"cpu", "cpu", "fake:0", {{"cpu", "fake:0"}}},
                      Placing{"cpu", "cpu", "fake:1", {{"cpu", "fake:1"}}},
                      Placing{"fake:0", "fake:0", "cpu", {{"fake:0", "cpu"}}},
                      Placing{"fake:1", "fake:1", "cpu", {{"fake:1", "cpu"}}},
                      Placing{"fake:0", "fake:0", "fake:0", {{"fake:0", "fake:0"}}},
                      Placing{"fake:1", "fake:1", "fake:1", {{"fake:1", "fake:1"}}},
                      Placing{"fake:0", "fake:0", "fake:1", {{"fake:0", "fake:1"}}},
                      Placing{"fake:1", "fake:1", "fake:0", {{"fake:1", "fake:0"}}},
                      Placing{"fake:0", "fake:1", "fake:0", {{"fake:0", "fake:0"}, {"fake:1", "fake:1"}}},
                      Placing{"fake:0", "fake:1", "fake:1", {{"fake:0", "fake:0"}, {"fake:1", "fake:1"}}},
                      Placing{"fake:1", "fake:0", "fake:0", {{"fake:0", "fake:0"}, {"fake:1", "fake:1"}}},
                      Placing{"fake:1", "fake:0", "fake:1", {{"fake:0", "fake:0"}, {"fake:1", "fake:1"}}},
                      Placing{"fake:0", "fake:1", "fake:0", {{"fake:0", "fake:1"}, {"fake:1", "fake:0"}}},
                      Placing{"fake:0", "fake:1", "fake:1", {{"fake:0", "fake:1"}, {"fake:1", "fake:0"}}},
                      Placing{"fake:1", "fake:0", "fake:0", {{"fake:0", "fake:1"}, {"fake:1", "fake:0"}}},
                      Placing{"fake:1", "fake:0", "fake:1", {{"fake:0", "fake:1"}, {"fake:1", "fake:0"}}}));

TEST_F(DeviceCalls, SeveralResultsAreEachOnTheirDevice) {
  make({{"fake:0", "fake:1"}, {"fake:1", "fake:2"}, {"fake:2", "fake:3"}, {"fake:3", "fake:0"}});
  std::vector<at::Tensor> given;
  for (int i = 0; i < 4; ++i) given.push_back(on(fake(i).str(), at::full({3}, i)));
  const auto results = got(there().call<&Devices::many>(given));
  ASSERT_EQ(results.size(), 4U);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(results[static_cast<std::size_t>(i)].device(), fake(i));
    EXPECT_TRUE(same(results[static_cast<std::size_t>(i)], at::full({3}, i + 1)));
  }
}

TEST_F(DeviceCalls, ResultsOfCallsWithoutTensorsFollowTheMap) {
  make({{"fake:0", "fake:1"}, {"fake:1", "fake:0"}});
  EXPECT_EQ(got(there().call<&Devices::made_on>("fake:0")).device(), fake(1));
  EXPECT_EQ(got(there().call<&Devices::made_on>("fake:1")).device(), fake(0));
  EXPECT_TRUE(got(there().call<&Devices::made_on>("cpu")).is_cpu());
}

TEST_F(DeviceCalls, ResultsOfCallsToTheOwnAgentFollowTheMap) {
  DeviceOptions options;
  options.map("here", {{"fake:0", "fake:1"}, {"fake:1", "fake:2"}, {"fake:2", "fake:0"}});
  cluster.add("here", layers(options));
  cluster["here"].serve(std::make_shared<Devices>());
  const rpc::Peer here = cluster.peer("here", "here");
  const auto results =
      got(here.call<&Devices::many>(std::vector{on("fake:0", at::ones({2})), on("fake:2", at::zeros({2}))}));
  ASSERT_EQ(results.size(), 2U);
  EXPECT_EQ(results[0].device(), fake(0));
  EXPECT_EQ(results[1].device(), fake(2));
  EXPECT_TRUE(same(results[0], at::full({2}, 2)));
  EXPECT_TRUE(same(results[1], at::ones({2})));
  EXPECT_EQ(got(here.call<&Devices::made_on>("fake:0")).device(), fake(2));
  EXPECT_EQ(got(here.call<&Devices::made_on>("fake:1")).device(), fake(0));
}

TEST_F(DeviceCalls, EveryShape) {
  make({{"fake:0", "fake:1"}});
  const at::Tensor large = on("fake:0", at::rand({300, 50}));
  const std::vector<at::Tensor> given{large,
                                      on("fake:0", at::rand({})),
                                      on("fake:0", at::rand({0, 3})),
                                      large.t(),
                                      large.narrow(0, 7, 100),
                                      on("fake:0", at::rand({1, 4})).expand({500, 4}),
                                      on("fake:0", at::randint(9, {600}, at::kLong)),
                                      on("fake:0", at::rand({9}).to(at::kBFloat16))};
  for (const at::Tensor& each : given) {
    const at::Tensor result = got(there().call<&Devices::back>(each));
    EXPECT_EQ(result.device(), fake(0));
    EXPECT_EQ(result.scalar_type(), each.scalar_type());
    EXPECT_EQ(result.sizes(), each.sizes());
    EXPECT_TRUE(same(result, each)) << each.sizes();
  }
}

TEST_F(DeviceCalls, OfOperators) {
  make({{"fake:0", "fake:1"}});
  allow_operators(cluster["there"], {"aten::add.Tensor"});
  const at::Tensor x = on("fake:0", at::ones({3}));
  const at::Tensor sum = got(call_operator(there(), "aten::add.Tensor", x, x));
  EXPECT_EQ(sum.device(), fake(0));
  EXPECT_TRUE(same(sum, at::full({3}, 2)));
}

TEST_F(DeviceCalls, AnArgumentMayChangeAfterTheCallIsMade) {
  make({{"fake:0", "fake:1"}});
  at::Tensor x = on("fake:0", at::ones({1000}));
  auto later = there().call<&Devices::sum>(x);
  x.fill_(2);
  EXPECT_EQ(got(std::move(later)), 1000);
}

// --- Tensors without a mapped device ---

TEST_F(DeviceCalls, AnArgumentThatTheMapDoesNotNameIsAnErrorAtOnceAndOtherCallsContinue) {
  make({{"fake:0", "fake:1"}});
  const at::Tensor lost = on("fake:2", at::ones({2}));
  for (int i = 0; i < 50; ++i) {  // more often than there are threads
    expect_error([&] { return there().call<&Devices::back>(lost); }, rpc::ErrorKind::failed_precondition,
                 "a tensor on fake:2 has no device at 'there'");
    EXPECT_TRUE(got(there().call<&Devices::back>(at::ones({2}))).equal(at::ones({2})));
  }
}

TEST_F(DeviceCalls, WithoutAMapAnArgumentIsRefused) {
  make({});
  EXPECT_EQ(test::kind_of([&] { return there().call<&Devices::back>(on("fake:0", at::ones({2}))); }),
            rpc::ErrorKind::failed_precondition);
  EXPECT_TRUE(got(there().call<&Devices::back>(at::ones({2}))).equal(at::ones({2})));
}

TEST_F(DeviceCalls, AResultThatTheMapDoesNotNameIsAnErrorAndOtherCallsContinue) {
  make({{"fake:0", "fake:1"}});
  for (int i = 0; i < 50; ++i) {
    expect_error([&] { got(there().call<&Devices::made_on>("fake:3")); }, rpc::ErrorKind::failed_precondition,
                 "a tensor on fake:3 has no device at 'here'");
    EXPECT_TRUE(got(there().call<&Devices::made_on>("cpu")).is_cpu());
  }
}

TEST_F(DeviceCalls, WithoutAMapAResultIsRefused) {
  make({});
  expect_error([&] { got(there().call<&Devices::made_on>("fake:0")); }, rpc::ErrorKind::failed_precondition);
  EXPECT_TRUE(got(there().call<&Devices::made_on>("cpu")).is_cpu());
}

TEST_F(DeviceCalls, AMapToAMissingDeviceOfThePeerIsRefused) {
  make({{"fake:0", "fake:9"}});
  expect_error([&] { got(there().call<&Devices::back>(on("fake:0", at::ones({2})))); },
               rpc::ErrorKind::invalid_argument,
               "the device map of 'here' for this agent names fake:9, but this host has 4 such devices");
}

TEST_F(DeviceCalls, AMapFromTheCpuToAMissingDeviceOfThePeerIsRefused) {
  make({{"cpu", "cuda:100"}});
  expect_error([&] { got(there().call<&Devices::back>(at::ones({2}))); }, rpc::ErrorKind::invalid_argument,
               "names cuda:100, but this host has");
}

TEST_F(DeviceCalls, ADeviceThatItsCallsMapDoesNotNameIsRefused) {
  const auto message = test::with_argument([](rpc::ValueWriter writer) {
    auto record = writer.set_record(4);
    record.field(0, "dtype").set_text("float32");
    record.field(1, "shape").set_ints({});
    record.field(2, "data").set_bytes(std::vector<std::byte>(4));
    record.field(3, "device").set_text("fake:0");
  });
  const auto decode = [&] { return rpc::Codec<at::Tensor>::decode(message->argument(0)); };
  EXPECT_EQ(test::kind_of(decode), rpc::ErrorKind::invalid_argument) << "a message without a map";
  message->slots().put(std::make_shared<IncomingDevices>(IncomingDevices{{other_stream(1)}, {}}));
  EXPECT_EQ(test::kind_of(decode), rpc::ErrorKind::invalid_argument) << "a map of another device";
  message->slots().put(std::make_shared<IncomingDevices>(IncomingDevices{{other_stream(0)}, {}}));
  EXPECT_EQ(decode().device(), fake(0));
}

TEST_F(DeviceCalls, AMapToADeviceThatThePeerWasNotGivenIsRefused) {
  make({{"fake:0", "fake:1"}}, {.devices = {fake(0)}});
  expect_error([&] { got(there().call<&Devices::made_on>("cpu")); }, rpc::ErrorKind::invalid_argument,
               "fake:1, which is not among the devices of this agent");
}

TEST_F(DeviceCalls, ACalleeWithoutTheLayerRefusesMappedTensors) {
  DeviceOptions options;
  options.map("plain", {{"fake:0", "fake:1"}});
  cluster.add("here", layers(options));
  cluster.add("plain", {});
  cluster["plain"].serve(std::make_shared<Devices>());
  const rpc::Peer plain = cluster.peer("here", "plain");
  EXPECT_EQ(test::kind_of([&] { got(plain.call<&Devices::back>(on("fake:0", at::ones({2})))); }),
            rpc::ErrorKind::unsupported);
  EXPECT_TRUE(got(plain.call<&Devices::back>(at::ones({2}))).equal(at::ones({2})));
}

TEST_F(DeviceCalls, TensorsOfTwoDevicesInOneOperation) {
  make({{"fake:0", "fake:0"}, {"fake:1", "fake:1"}});
  expect_error(
      [&] { got(there().call<&Devices::mixed>(on("fake:0", at::ones({2})), on("fake:1", at::ones({2})))); },
      rpc::ErrorKind::handler_failed, "to be on the same device");
}

// --- Streams ---

TEST_F(DeviceCalls, AHandlerHasSeparateStreamsWithItsArguments) {
  make({{"fake:0", "fake:1"}});
  const at::Tensor x = on("fake:0", at::full({700}, 3));
  EXPECT_NE(got(there().call<&Devices::stream_of>(x)), 0);
  EXPECT_EQ(got(there().call<&Devices::sum>(x)), 2100);
}

TEST_F(DeviceCalls, AResultIncludesPendingWorkOfTheHandlersStream) {
  make({{"fake:0", "fake:1"}});
  const at::Tensor x = on("fake:0", at::zeros({700}));
  EXPECT_TRUE(same(got(there().call<&Devices::late>(x)), at::full({700}, 7)));
}

TEST_F(DeviceCalls, ACoroutineKeepsItsStreamsOverSuspensions) {
  make({{"fake:0", "fake:1"}});
  std::vector<rpc::Future<at::Tensor>> results;
  const at::Tensor x = on("fake:0", at::zeros({700}));
  for (int i = 0; i < 20; ++i) results.push_back(there().call<&Devices::late_twice>(x));
  for (auto& each : results) EXPECT_TRUE(same(got(std::move(each)), at::full({700}, 8)));
}

TEST_F(DeviceCalls, ArgumentsIncludePendingWorkOfTheCallersStream) {
  make({{"fake:0", "fake:1"}});
  const c10::StreamGuard guard(other_stream(0));
  const at::Tensor x = at::empty({700}, at::TensorOptions().device(fake(0)));
  accelerator.fill_later(x, 5);
  EXPECT_EQ(got(there().call<&Devices::sum>(x)), 3500);
}

// The loop's thread has the default stream, which does not wait for the result.
TEST_F(DeviceCalls, ResultsArriveOnTheStreamThatWasCurrentAtTheCall) {
  make({{"fake:0", "fake:1"}});
  const at::Tensor x = on("fake:0", at::full({700}, 4));
  const c10::Stream stream = other_stream(0);
  const c10::StreamGuard guard(stream);
  const at::Tensor result = got(there().call<&Devices::back>(x));
  EXPECT_EQ(accelerator.pending(c10::Stream(c10::Stream::DEFAULT, fake(0))), 0U);
  EXPECT_GT(accelerator.pending(stream), 0U) << "its copy was waited for";
  EXPECT_TRUE(same(result, at::full({700}, 4)));
}

TEST_F(DeviceCalls, TheNextHandlerSeesPendingWorkOfThePreviousOne) {
  make({{"fake:0", "fake:1"}});
  got(there().call<&Devices::keep>(on("fake:0", at::zeros({700}))));
  EXPECT_EQ(got(there().call<&Devices::kept_sum>()), 4900);
}

TEST_F(DeviceCalls, UsePinnedMemoryAndWaitForNoWholeDevice) {
  make({{"fake:0", "fake:1"}});
  const at::Tensor x = on("fake:0", at::ones({700}));
  const std::size_t before = accelerator.pinned_allocations();
  got(there().call<&Devices::back>(x));
  EXPECT_EQ(accelerator.pinned_allocations() - before, 4U) << "out and in, there and back";
  EXPECT_EQ(accelerator.device_waits(), 0U);
}

}  // namespace
}  // namespace weft::tensor::device_calls_test
