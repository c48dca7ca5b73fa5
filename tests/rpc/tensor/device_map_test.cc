#include <weft/rpc/tensor/device_map.h>

#include "tests/support/errors.h"

namespace weft::tensor::device_map_test {
namespace {

using namespace test;

c10::Device cuda(int index) { return {c10::kCUDA, static_cast<c10::DeviceIndex>(index)}; }
const c10::Device cpu(c10::kCPU);

TEST(DeviceMapTest, MapsDevicesAndItsInverseMapsThemBack) {
  const DeviceMap map{{"cuda:0", "cuda:1"}, {"cuda:1", "cuda:0"}, {"cuda:2", "cuda:2"}};
  EXPECT_EQ(map.find(cuda(0)), cuda(1));
  EXPECT_EQ(map.find(cuda(1)), cuda(0));
  EXPECT_EQ(map.find(cuda(2)), cuda(2));
  EXPECT_EQ(map.find(cuda(3)), std::nullopt);
  for (const auto& [here, there] : map.pairs()) EXPECT_EQ(map.inverse().find(there), here);
  EXPECT_EQ(map.inverse().inverse(), map);
}

TEST(DeviceMapTest, TheCpuMapsToItselfByDefault) {
  EXPECT_EQ(DeviceMap{}.find(cpu), cpu);
  EXPECT_EQ((DeviceMap{{"cuda:0", "cuda:1"}}.find(cpu)), cpu);
  const DeviceMap to_accelerator{{"cpu", "cuda:1"}}, to_cpu{{"cuda:1", "cpu"}};
  EXPECT_EQ(to_accelerator.find(cpu), cuda(1));
  EXPECT_EQ(to_accelerator.inverse(), to_cpu);
  EXPECT_EQ(to_cpu.find(cuda(1)), cpu);
  EXPECT_EQ(to_accelerator.find(c10::Device(c10::kCPU, 0)), cuda(1)) << "the CPU has one name";
}

TEST(DeviceMapTest, OneDeviceToTwoIsRefused) {
  DeviceMap map{{"cuda:0", "cuda:1"}};
  expect_error([&] { return map.add(cuda(0), cuda(0)); }, rpc::ErrorKind::invalid_argument,
               whole("device map: one device to two: cuda:0 to cuda:1 and to cuda:0"));
  EXPECT_NO_THROW(map.add(cuda(0), cuda(1))) << "the same once more";
  EXPECT_EQ(map.pairs().size(), 1U);
}

TEST(DeviceMapTest, TwoDevicesToOneAreRefused) {
  DeviceMap map{{"cuda:1", "cuda:0"}};
  expect_error([&] { return map.add(cuda(0), cuda(0)); }, rpc::ErrorKind::invalid_argument,
               "two devices to one: cuda:1 and cuda:0 to cuda:0");
  EXPECT_EQ(map.find(cuda(0)), std::nullopt) << "what was refused is not there";
}

TEST(DeviceMapTest, InvalidDeviceNamesAreRefused) {
  for (const char* name :
       {"cuda:-1", "cuda", "meta", "gpu:0", "", "cuda:x", "cuda:0 ", "cuda:256", "cuda:99999999999999"}) {
    EXPECT_EQ(kind_of([&] { return DeviceMap{{name, "cuda:0"}}; }), rpc::ErrorKind::invalid_argument) << name;
    EXPECT_EQ(kind_of([&] { return DeviceMap{{"cuda:0", name}}; }), rpc::ErrorKind::invalid_argument) << name;
  }
}

TEST(DeviceMapTest, IsSentByDeviceNames) {
  const DeviceMap map{{"cuda:0", "cuda:1"}, {"cpu", "cuda:0"}};
  const std::map<std::string, std::string> names{{"cuda:0", "cuda:1"}, {"cpu", "cuda:0"}};
  EXPECT_EQ(map.names(), names);
  EXPECT_EQ(DeviceMap::of(names).names(), names);
  EXPECT_EQ(kind_of([] { return DeviceMap::of({{"cuda:0", "cpu"}, {"cuda:1", "cpu"}}); }),
            rpc::ErrorKind::invalid_argument);
}

}  // namespace
}  // namespace weft::tensor::device_map_test
