#include <weft/parallel/collectives/nccl/internal/memory.h>

#include "tests/parallel/collectives/nccl/ranks.h"

namespace weft::collectives::nccl::testing {
namespace memory_test {

class NcclMemory : public Ranks {};

TEST_F(NcclMemory, IsAllocatedAndFreedOnlyWhenNoWorkIsInFlight) {
  make(2);
  auto memory = allocate(device(0), 64);
  auto registered = register_memory(comms[0], memory, 64);
  auto other_memory = allocate(device(0), 64);
  EXPECT_EQ(nccl.memory(), 3U);

  std::vector<float> a{1}, b{1};
  auto first = all_reduce(comms[0], a);
  EXPECT_EQ(kind_of([&] { return allocate(device(0), 64); }), ErrorKind::failed_precondition);
  EXPECT_EQ(kind_of([&] { return register_memory(comms[0], memory, 64); }), ErrorKind::failed_precondition);
  registered = memory = other_memory = nullptr;
  EXPECT_EQ(nccl.memory(), 3U);
  auto other = all_reduce(comms[1], b);
  got(first);
  EXPECT_EQ(nccl.memory(), 0U);
  got(other);
}

TEST_F(NcclMemory, RegistrationEndsWithTheCommunicator) {
  make(1);
  const auto memory = allocate(device(0), 64);
  {
    const auto registered = register_memory(comms[0], memory, 64);
    got(comms[0]->abort("enough"));
  }
  EXPECT_EQ(nccl.memory(), 2U);  // a destroyed communicator is not used
  EXPECT_EQ(kind_of([&] { return register_memory(comms[0], memory, 64); }), ErrorKind::aborted);
}

}  // namespace memory_test
}  // namespace weft::collectives::nccl::testing
