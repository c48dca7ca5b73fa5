// Conformance: the contract of a group, which every backend keeps. conformance_test.cc has the tests; the
// test file of a backend instantiates them:
//
//   INSTANTIATE_TEST_SUITE_P(Messages, Conformance,
//                            ::testing::Values(on_hosts_as("messages", Backend::messages)), name_of_backend);
#pragma once

#include "tests/parallel/collectives/oracle.h"

namespace weft::collectives::testing {

// Groups over one backend, and the memory of their ranks' tensors.
class Deployment {
 public:
  virtual ~Deployment() = default;
  virtual std::vector<Group> make() = 0;
  // Returns a tensor of these values in the memory that the backend uses.
  virtual at::Tensor place(const Group&, const at::Tensor& values) { return values.clone(); }
  // Does the work that collectives need in order to complete, until over() is true.
  virtual void work_until(const std::function<bool()>& over) {
    while (!over()) std::this_thread::yield();
  }
};

struct ConformingBackend {
  std::string name;
  std::function<std::unique_ptr<Deployment>()> deploy;
};
inline std::ostream& operator<<(std::ostream& out, const ConformingBackend& backend) {
  return out << backend.name;
}

class Conformance : public ::testing::TestWithParam<ConformingBackend> {
 protected:
  void TearDown() override { groups.clear(); }  // before the deployment
  at::Tensor place(int rank, const at::Tensor& values) {
    return deployment->place(groups[static_cast<std::size_t>(rank)], values);
  }
  at::Tensor zeros(int rank, at::IntArrayRef shape) { return place(rank, at::zeros(shape)); }
  // Calls `begin_at` on each rank, starting with rank `first`. Returns the futures by rank.
  template <class F>
  Futures begin(F begin_at, int first = 0) {
    Futures futures;
    for (const Group& group : groups)
      if (group.rank() >= first) futures.push_back(begin_at(group, group.rank()));
    deployment->work_until([&] {
      return std::all_of(futures.begin(), futures.end(), [](const auto& future) { return future.ready(); });
    });
    return futures;
  }
  template <class F>
  void all(F begin_at) {
    for (auto& future : begin(begin_at)) got(std::move(future));
  }

  std::unique_ptr<Deployment> deployment = GetParam().deploy();
  std::vector<Group> groups = deployment->make();
  const int ranks = static_cast<int>(groups.size());
};

// Members of one process, with tensors in the host's memory.
class DeploymentOnHosts final : public Deployment {
 public:
  explicit DeploymentOnHosts(Backend backend) : backend_(backend), company_(few(backend), backend) {}
  std::vector<Group> make() override {
    std::vector<Group> groups = company_.groups();
    for (const Group& group : groups) EXPECT_EQ(group.backend(), expected(backend_, group.size()));
    return groups;
  }
  at::Tensor place(const Group& group, const at::Tensor& values) override {
    return backend_ == Backend::placed ? group.empty(values.sizes(), values.options()).copy_(values)
                                       : values.clone();
  }

 private:
  const Backend backend_;
  Company company_;
};
inline ConformingBackend on_hosts_as(const char* name, Backend backend) {
  return {name, [backend] { return std::make_unique<DeploymentOnHosts>(backend); }};
}
inline std::string name_of_backend(const ::testing::TestParamInfo<ConformingBackend>& info) {
  return info.param.name;
}

}  // namespace weft::collectives::testing
