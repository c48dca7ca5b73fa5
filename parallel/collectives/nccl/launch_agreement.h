// LaunchAgreement: what a coordinator decides where several threads of each process begin collectives of
// several communicators: one order in which all processes launch them.
//
// Each member says which launch it could begin (ready()); once all members of its communicator have said so
// it is released, and the coordinator tells them: they take their LaunchTurn in the order in which releases
// come. Only what everybody is ready for is released, so that no order can wait for a thread that waits for
// another. Each communicator's launches are numbered, and released by their numbers. Plain data and a pure
// function of what it was told; no thread-safety.
#pragma once

#include <weft/rpc/core/export.h>

#include <compare>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

namespace weft::collectives::nccl {

struct LaunchKey {
  std::uint64_t communicator = 0, sequence = 0;
  friend auto operator<=>(const LaunchKey&, const LaunchKey&) = default;
};

class WEFT_EXPORT LaunchAgreement {
 public:
  void add(std::uint64_t communicator, int size);  // already_exists
  // It has ended: nothing of it is released any more.
  void remove(std::uint64_t communicator);

  // What is released now, in order. Of a communicator that is not there, or has ended: nothing.
  // protocol_error: a member that is none, or that said so before.
  std::vector<LaunchKey> ready(LaunchKey launch, int member);
  std::size_t waiting() const;  // launches that some members are ready for

 private:
  struct Members {
    int size = 0;
    std::uint64_t next = 0;                          // the first that is not released
    std::map<std::uint64_t, std::set<int>> ready{};  // by sequence
  };
  std::map<std::uint64_t, Members> communicators_;
};

}  // namespace weft::collectives::nccl
