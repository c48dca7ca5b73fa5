// LaunchSequence: launches of one member that all members are ready for, until it is their turn to begin.
//
// Rank 0 numbers launches in the order in which all members have become ready for them, and answers may
// arrive in another order. A launch begins after all with smaller numbers. Pure of transport and threads.
// Thread-safety: one call at a time.
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
  using Begin = rpc::UniqueFunction<void(rpc::Result<void>)>;  // with the error, if it can never begin

  // All members are ready for launch `number`. Returns the launches that begin now, in order.
  std::vector<Begin> ready(std::uint64_t number, Begin begin) {
    waiting_.emplace(number, std::move(begin));
    std::vector<Begin> now;
    for (; !waiting_.empty() && waiting_.begin()->first == next_; ++next_)
      now.push_back(std::move(waiting_.extract(waiting_.begin()).mapped()));
    return now;
  }
  // Those that wait for one with a smaller number, which does not come any more.
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
