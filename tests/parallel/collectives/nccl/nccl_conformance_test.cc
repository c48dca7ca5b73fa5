#include "tests/parallel/collectives/conformance.h"
#include "tests/parallel/collectives/nccl/fake_devices.h"

namespace weft::collectives::testing {
namespace nccl_conformance_test {

class DeploymentOnDevices final : public Deployment {
 public:
  std::vector<Group> make() override {
    std::vector<Group> groups = company_.groups({.timeout = 10s});
    Futures preparing;
    for (const Group& group : groups) preparing.push_back(group.prepare(FakeDevices::device(group.rank())));
    devices_.work_until_ready(preparing);
    for (auto& future : preparing) got(std::move(future));
    return groups;
  }
  at::Tensor place(const Group& group, const at::Tensor& values) override {
    return devices_.on_device(group.rank(), values);
  }
  void work_until(const std::function<bool()>& over) override { devices_.work_until(over); }

 private:
  static constexpr int ranks_ = 3;
  FakeDevices devices_{ranks_};
  Company company_{ranks_, Backend::memory, std::make_unique<test::InProcessJobStore>(),
                   [this](int) { return devices_.devices(); }};
};

}  // namespace nccl_conformance_test

INSTANTIATE_TEST_SUITE_P(Nccl, Conformance,
                         ::testing::Values(ConformingBackend{
                             "devices",
                             [] { return std::make_unique<nccl_conformance_test::DeploymentOnDevices>(); }}),
                         name_of_backend);

}  // namespace weft::collectives::testing
