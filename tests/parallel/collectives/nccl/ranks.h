// The ranks of one communicator in this process, over a FakeNccl. The test runs their loops by hand.
#pragma once

#include <weft/parallel/collectives/nccl/internal/communicator.h>

#include <gtest/gtest.h>

#include "tests/support/errors.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/hand_loop.h"

namespace weft::collectives::nccl::testing {

using rpc::ErrorKind;
using test::FakeNccl;
using test::HandLoop;
using test::kind_of;
using namespace std::chrono_literals;

class Ranks : public ::testing::Test {
 protected:
  // The device of the rank. Each rank has a separate one.
  Device& device(int rank) {
    auto& device = devices_[rank];
    if (device.api == nullptr) {
      device.api = api();
      device.watch = std::make_shared<Watch>(loop);
      device.background = background;
    }
    return device;
  }
  std::shared_ptr<const Api> api() {
    if (api_ == nullptr) api_ = nccl.api();
    return api_;
  }
  CommunicatorOptions options(int rank) {
    CommunicatorOptions options;
    options.name = "test";
    options.timeout = 100ms;
    options.on_failure = [this, rank](const rpc::Error& error) { failures[rank].push_back(error.kind()); };
    return options;
  }

  bool run_until(const std::function<bool()>& holds) {
    return test::run_until({loop.get(), background.get()}, holds);
  }
  template <class T>
  T got(rpc::Future<T>& future) {
    if (!run_until([&] { return future.ready(); })) throw std::runtime_error("the future does not complete");
    return future.get();
  }
  template <class T>
  T got(rpc::Future<T>&& future) {
    return got(future);
  }
  // Runs all posted work, and advances the clock so that it completes.
  void settle() {
    for (int i = 0; i < 20; ++i) {
      while (loop->turn() || background->turn()) {
      }
      loop->advance(1ms);
    }
  }

  std::vector<rpc::Future<Communicator::Ptr>> begin(int size) {
    const UniqueId id = Communicator::unique_id(*api());
    std::vector<rpc::Future<Communicator::Ptr>> making;
    for (int rank = 0; rank < size; ++rank)
      making.push_back(Communicator::create(device(rank), id, size, rank, options(rank)));
    return making;
  }
  void make(int size) {
    auto making = begin(size);
    for (auto& one : making) comms.push_back(got(one));
  }

  static Stream stream(int rank) { return reinterpret_cast<Stream>(static_cast<std::uintptr_t>(rank + 1)); }
  rpc::Future<void> all_reduce(const Communicator::Ptr& comm, std::vector<float>& values,
                               std::optional<std::chrono::nanoseconds> timeout = {}, LaunchTurn turn = {}) {
    Launch launch;
    launch.stream = stream(comm->rank());
    launch.what = "all_reduce float32[" + std::to_string(values.size()) + "]";
    launch.timeout = timeout;
    launch.turn = std::move(turn);
    launch.mark = [this, at = launch.stream] { return nccl.mark(at); };
    return comm->launch(std::move(launch), [&](Calls& calls) {
      calls.all_reduce(values.data(), values.data(), values.size(), DataType::float32, RedOp::sum);
    });
  }
  // Runs one collective on all ranks of `among`, and checks the results.
  void expect_works(const std::vector<Communicator::Ptr>& among) {
    std::vector<std::vector<float>> values;
    std::vector<rpc::Future<void>> done;
    for (std::size_t i = 0; i < among.size(); ++i) values.push_back({float(i + 1), 10});
    for (std::size_t i = 0; i < among.size(); ++i) done.push_back(all_reduce(among[i], values[i]));
    for (auto& one : done) got(one);
    const auto n = static_cast<float>(among.size());
    for (const auto& one : values) EXPECT_EQ(one, (std::vector<float>{n * (n + 1) / 2, 10 * n}));
  }

  void TearDown() override {
    EXPECT_EQ(nccl.misuse(), std::vector<std::string>{});
    comms.clear();
    settle();
    EXPECT_EQ(nccl.alive(), 0U);
    EXPECT_EQ(nccl.misuse(), std::vector<std::string>{});
    EXPECT_EQ(nccl.operators(), 0);
    EXPECT_TRUE(nccl.idle_threads());
  }

  FakeNccl nccl;
  std::map<int, std::vector<ErrorKind>> failures;
  std::shared_ptr<HandLoop> loop = std::make_shared<HandLoop>(), background = std::make_shared<HandLoop>();
  std::vector<Communicator::Ptr> comms;

 private:
  std::shared_ptr<const Api> api_;
  std::map<int, Device> devices_;
};

}  // namespace weft::collectives::nccl::testing
