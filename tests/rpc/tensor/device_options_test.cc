#include <weft/rpc/tensor/device_options.h>

#include <weft/rpc/tensor/layers.h>

#include "tests/support/cluster.h"
#include "tests/support/fake_accelerator.h"

namespace weft::tensor::device_options_test {
namespace {

using namespace test;

TEST(DeviceOptionsTest, MergeMapsForOnePeer) {
  DeviceOptions options;
  options.map("there", {{"cuda:0", "cuda:1"}}).map("there", {{"cuda:1", "cuda:0"}});
  EXPECT_EQ(options.maps.at("there"), (DeviceMap{{"cuda:0", "cuda:1"}, {"cuda:1", "cuda:0"}}));
  EXPECT_EQ(kind_of([&] { return options.map("there", {{"cuda:0", "cuda:0"}}); }),
            rpc::ErrorKind::invalid_argument);
  EXPECT_NO_THROW(options.map("elsewhere", {{"cuda:0", "cuda:0"}}));
}

TEST(DeviceOptionsTest, PeersWithoutASeparateMapHaveTheCommonOne) {
  FakeAccelerator::install();
  DeviceOptions options;
  options.map("there", {{"fake:0", "fake:1"}});
  options.others = {{"fake:1", "fake:2"}};
  const AgentDevices devices(options);
  EXPECT_EQ(devices.map_for("there"), (DeviceMap{{"fake:0", "fake:1"}}));
  EXPECT_EQ(devices.map_for("elsewhere"), options.others);
  EXPECT_EQ(devices.accelerators(), (std::vector{FakeAccelerator::device(0), FakeAccelerator::device(1)}));
}

TEST(DeviceOptionsTest, ADeviceThatDoesNotExistHereIsRefused) {
  DeviceOptions options;
  options.map("there", {{"cuda:100", "cuda:0"}});
  const auto make = [&] {
    test::Cluster cluster({.layers = layers(options)}, {"here"});
    return 0;
  };
  EXPECT_EQ(kind_of(make), rpc::ErrorKind::invalid_argument);
  EXPECT_NE(message_of(make).find("the device map for 'there' names cuda:100, but this host has"),
            std::string::npos)
      << message_of(make);
}

TEST(DeviceOptionsTest, AMapFromADeviceThatTheAgentWasNotGivenIsRefused) {
  FakeAccelerator::install();
  DeviceOptions options;
  options.map("there", {{"fake:1", "fake:0"}});
  options.devices = {FakeAccelerator::device(0)};
  EXPECT_EQ(message_of([&] { return AgentDevices(options); }),
            "the device map for 'there' names fake:1, which is not among the devices of this agent");
  options.devices.push_back(FakeAccelerator::device(1));
  EXPECT_NO_THROW(AgentDevices{options});
  options.devices.push_back(FakeAccelerator::device(FakeAccelerator::devices));
  EXPECT_EQ(kind_of([&] { return AgentDevices(options); }), rpc::ErrorKind::invalid_argument);
}

}  // namespace
}  // namespace weft::tensor::device_options_test
