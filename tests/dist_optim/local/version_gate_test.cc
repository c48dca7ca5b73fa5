#include <weft/dist_optim/local/version_gate.h>
#include <weft/rpc/core/error.h>

#include <barrier>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/dist_optim/refusal.h"

namespace weft::dist_optim::local_version_gate_test {
namespace {

// The data that the gate guards: `value` is the loaded version. It is not atomic, so that TSan detects a read
// that is concurrent with a load.
struct Tensors {
  std::uint64_t value = 0;
};

template <class F>
void expect_refused(F code) {
  refusal(rpc::ErrorKind::failed_precondition, code);
}

// Waits until this number of threads is queued. If the gate admits a thread too early, the number is never
// reached, and the test hangs.
void wait_in_line(const VersionGate& gate, std::size_t threads) {
  while (gate.waiting() < threads) std::this_thread::yield();
}

TEST(VersionGate, ReadersOfTheLoadedVersionEnterConcurrently) {
  VersionGate gate(7, [](auto) { FAIL() << "no other version was asked for"; });
  std::barrier both(2);
  auto reader = [&] {
    gate.enter(7);
    both.arrive_and_wait();  // hangs unless both are inside
    gate.leave();
  };
  std::jthread first(reader), second(reader);
}

TEST(VersionGate, AnExclusiveSectionExcludesAllOtherThreads) {
  Tensors tensors{0};
  VersionGate gate(0, [&](auto version) { tensors.value = version; });
  std::vector<std::string> order;  // guarded by the gate itself
  gate.enter(0);
  std::jthread writer([&] {
    gate.exclusive([&]() -> std::optional<std::uint64_t> {
      wait_in_line(gate, 2);  // both readers are in the queue after the writer
      order.push_back("writer");
      tensors.value = 1;
      return 1;
    });
  });
  wait_in_line(gate, 1);
  // It reads the loaded version, but enters after the writer. Otherwise a stream of readers would exclude the
  // writer without limit.
  std::jthread reader([&] {
    gate.enter(0);
    order.push_back("reader of " + std::to_string(tensors.value));
    gate.leave();
  });
  wait_in_line(gate, 2);
  std::jthread newest([&] {
    gate.enter_newest();
    order.push_back("reader of " + std::to_string(tensors.value));
    gate.leave();
  });
  wait_in_line(gate, 3);
  EXPECT_TRUE(order.empty());
  gate.leave();
  for (std::jthread* thread : {&writer, &reader, &newest}) thread->join();
  EXPECT_EQ(order, (std::vector<std::string>{"writer", "reader of 0", "reader of 1"}));
}

TEST(VersionGate, AnExclusiveSectionCreatesTheNewestVersion) {
  Tensors tensors{0};
  VersionGate gate(0, [&](auto version) { tensors.value = version; });
  gate.exclusive([&]() -> std::optional<std::uint64_t> {
    tensors.value = 1;
    return 1;
  });
  EXPECT_EQ(gate.loaded(), 1u);
  gate.enter(0);
  EXPECT_EQ(tensors.value, 0u);
  gate.leave();
  EXPECT_EQ(gate.loaded(), 0u) << "loaded versions stay until another one is wanted";
  gate.enter_newest();
  EXPECT_EQ(tensors.value, 1u);
  gate.leave();
  gate.enter(0);
  gate.settle();
  EXPECT_EQ(tensors.value, 0u) << "settling must not disturb a reader";
  gate.leave();
  gate.settle();
  EXPECT_EQ(tensors.value, 1u);
}

TEST(VersionGate, ASectionThatThrowsLeavesTheGateUsable) {
  VersionGate gate(0, [](auto) {});
  EXPECT_THROW(gate.exclusive([]() -> std::optional<std::uint64_t> { throw std::runtime_error("no"); }),
               std::runtime_error);
  gate.enter(0);
  gate.leave();
}

TEST(VersionGate, AllThreadsThatWaitForAVersionEnterWhenItIsLoaded) {
  VersionGate gate(0, [](auto) {});
  gate.enter(0);
  std::barrier both(2);
  auto reader = [&](std::uint64_t version) {
    gate.enter(version);
    if (version == 1) both.arrive_and_wait();  // hangs unless both are inside
    gate.leave();
  };
  std::vector<std::jthread> threads;
  for (std::uint64_t version : {1, 2, 1}) {
    threads.emplace_back(reader, version);
    wait_in_line(gate, threads.size());
  }
  gate.leave();
  threads.clear();
  EXPECT_EQ(gate.loads(), 2u);
}

TEST(VersionGate, AThreadThatIsInsideMayEnterAgainButNotWaitForItself) {
  VersionGate gate(0, [](auto) {});
  gate.enter(0);
  std::jthread writer([&] { gate.exclusive([]() -> std::optional<std::uint64_t> { return 1; }); });
  wait_in_line(gate, 1);  // the nested entries must not wait for it in the queue
  gate.enter(0);
  gate.enter_newest();
  expect_refused([&] { gate.enter(1); });
  expect_refused([&] { gate.exclusive([]() -> std::optional<std::uint64_t> { return std::nullopt; }); });
  gate.leave();
  gate.leave();
  EXPECT_EQ(gate.loaded(), 0u);
  gate.leave();
  writer.join();
  EXPECT_EQ(gate.loaded(), 1u);
  expect_refused([&] { gate.leave(); });
  gate.exclusive([&]() -> std::optional<std::uint64_t> {
    expect_refused([&] { gate.enter(1); });
    expect_refused([&] { gate.exclusive([]() -> std::optional<std::uint64_t> { return std::nullopt; }); });
    return std::nullopt;
  });
}

}  // namespace
}  // namespace weft::dist_optim::local_version_gate_test
