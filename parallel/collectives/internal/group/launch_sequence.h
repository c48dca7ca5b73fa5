// LaunchSequence: orders one member's launches for which all members are ready.
//
// Rank 0 numbers launches in the order in which all members became ready for them, but its replies may arrive
// in another order. A launch starts after all launches with smaller numbers. Independent of transport and
// threads. Thread-safety: one call at a time.
#pragma once

#include <weft/rpc/core/result.h>
#include <weft/rpc/core/unique_function.h>

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace weft::collectives {

class LaunchSequence {
 public:
  // Called with an error if the launch can never start.
  using Begin = rpc::UniqueFunction<void(rpc::Result<void>)>;

  // All members are ready for launch `number`. Returns the launches that start now, in order.
  std::vector<Begin> ready(std::uint64_t number, Begin begin) {
    waiting_.emplace(number, std::move(begin));
    std::vector<Begin> now;
    for (; !waiting_.empty() && waiting_.begin()->first == next_; ++next_)
      now.push_back(std::move(waiting_.extract(waiting_.begin()).mapped()));
    return now;
  }
  // Returns the launches that wait for a launch with a smaller number. Call it when no more launches arrive.
  std::vector<Begin> take_all() {
    std::vector<Begin> all;
    for (auto& [number, begin] : std::exchange(waiting_, {})) all.push_back(std::move(begin));
    return all;
  }

 private:
  std::map<std::uint64_t, Begin> waiting_;
  std::uint64_t next_ = 0;
};

}  // namespace weft::collectives
