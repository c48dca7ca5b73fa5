// Device maps in jobs: the keys are member names, and the map also applies to a member that joins later.
#include <weft/rpc/tensor/device_layer.h>
#include <weft/rpc/tensor/layers.h>

#include <torch/torch.h>

#include "tests/support/fake_accelerator.h"
#include "tests/support/job.h"
#include "tests/support/messages.h"

namespace weft::tensor::device_job_test {
namespace {

using namespace test;

struct Doubler {
  at::Tensor twice(at::Tensor x) {
    if (x.device() != FakeAccelerator::device(1))
      throw rpc::Error(rpc::ErrorKind::invalid_argument, "an argument on " + x.device().str());
    return x + x;
  }
  using Service = rpc::Service<"doubler", rpc::Method<"twice", &Doubler::twice>>;
};

struct DeviceJob : testing::Test {
  const std::shared_ptr<rpc::InProcess> network = std::make_shared<rpc::InProcess>();

  // world: the world size; 0 if it is not fixed. map_for: the member for which the agent has a map.
  std::unique_ptr<rpc::Agent> member(std::size_t rank, std::size_t world, const std::string& map_for = "") {
    FakeAccelerator::install();
    rpc::MemberOptions options{{.name = "worker" + std::to_string(rank), .handler_threads = 2}};
    options.listen = {rank == 0 ? "inproc://host" : "inproc://" + options.name};
    options.in_process = network;
    options.log = [](const rpc::LogRecord&) {};
    options.rendezvous = {
        .store = "inproc://host", .rank = rank, .world_size = world, .fixed_world = world != 0};
    DeviceOptions devices;
    if (!map_for.empty()) devices.map(map_for, {{"fake:0", "fake:1"}});
    auto agent = test::make_member(options, layers(devices));
    agent->serve(std::make_shared<Doubler>());
    return agent;
  }
  static void expect_twice(rpc::Agent& from, const std::string& to) {
    const at::Tensor x = torch::arange(4.0).to(FakeAccelerator::device(0));
    const at::Tensor twice = got(from.peer(to).call<&Doubler::twice>(x));
    EXPECT_EQ(twice.device(), FakeAccelerator::device(0));
    EXPECT_TRUE(twice.cpu().equal(torch::arange(4.0) * 2));
  }
};

TEST_F(DeviceJob, AMapForAnUnknownMemberFailsTheWaitForTheWorld) {
  const auto host = member(0, 2, "worker1"), other = member(1, 2, "worker7");
  auto host_met = rpc::Job(*host).wait_for(2), other_met = rpc::Job(*other).wait_for(2);
  got(std::move(host_met));
  test::expect_error(std::move(other_met), rpc::ErrorKind::invalid_argument,
                     "a device map for 'worker7', but no member of this job has that name");
  expect_twice(*host, "worker1");
}

TEST_F(DeviceJob, AMemberHasAMapForLaterMembers) {
  const auto first = member(0, 0, "worker1");
  got(rpc::Job(*first).wait_for(1));
  const auto second = member(1, 0, "worker0");
  got(rpc::Job(*second).wait_for(2));
  got(rpc::Job(*first).wait_for(2));
  expect_twice(*first, "worker1");
  expect_twice(*second, "worker0");
}

}  // namespace
}  // namespace weft::tensor::device_job_test
