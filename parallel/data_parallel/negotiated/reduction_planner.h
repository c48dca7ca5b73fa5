// ReductionPlanner: decides which named all-reduces start, in which order, and which are fused into one.
//
// The ranks of a group request all-reduces by name, in any order. A request is ready when all ranks have made
// it. Ready requests are planned in the order in which they became ready. Requests of one kind are fused
// into one launch up to a number of bytes; a larger request is launched alone. If the ranks mean
// different things by one name, the launch carries the error for all of them. Rank 0 of a NegotiatedReduction
// owns the planner and sends its launches to all ranks, so that all ranks execute one plan. Pure of
// transport, LibTorch and clocks: times are arguments. Not thread-safe.
#pragma once

#include <weft/rpc/codec/struct_codec.h>
#include <weft/rpc/core/error.h>
#include <weft/rpc/core/export.h>
#include <weft/rpc/core/loop.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace weft::data_parallel {

// One rank is ready to reduce the tensors of this name.
struct ReductionRequest {
  std::string name;
  std::string meaning;      // shapes, dtype, operation and factors: equal on all ranks
  std::string kind;         // requests of one kind may be fused: dtype, operation and factors
  std::uint64_t bytes = 0;  // of all its tensors
};
WEFT_CODEC(ReductionRequest, name, meaning, kind, bytes)

// What all ranks do next: one collective for all these names; or each of the names fails.
struct ReductionLaunch {
  std::vector<std::string> names;
  std::string error = {};  // empty: none
  std::uint16_t kind = 0;  // of the error, an rpc::ErrorKind
};
WEFT_CODEC(ReductionLaunch, names, error, kind)

class WEFT_EXPORT ReductionPlanner {
 public:
  using Time = rpc::Clock::time_point;

  explicit ReductionPlanner(int ranks) : ranks_(ranks) {}

  // A rank requests a name again only after its launch was planned.
  void add(int rank, ReductionRequest request, Time now);
  // This rank makes no further requests. Requests that still need it fail with failed_precondition, now and
  // later.
  void close(int rank);
  bool is_closed(int rank) const { return closed_.contains(rank); }
  // Whether some request of this rank is not planned yet.
  bool has_requests_of(int rank) const;

  std::uint64_t ready_bytes() const { return ready_bytes_; }
  bool has_ready() const { return !ready_.empty(); }
  bool has_waiting() const { return !waiting_.empty(); }  // for ranks
  // Plans all ready requests. fusion_bytes: the most that a launch of several requests has. max_request: a
  // larger request is launched alone.
  std::vector<ReductionLaunch> plan(std::uint64_t fusion_bytes,
                                    std::uint64_t max_request = std::numeric_limits<std::uint64_t>::max());

  // A request that some ranks have made `since` then, and that the missing ranks have not.
  struct Stall {
    std::string name;
    Time since;
    std::vector<int> ready, missing;
    std::string text() const;  // "ready on ranks 0, 2; missing ranks 1, 3"
  };
  // All that have waited for `limit` or longer at `now`, the oldest first.
  std::vector<Stall> stalled(Time now, std::chrono::nanoseconds limit) const;
  std::optional<Time> oldest() const;  // first request for a name that is not ready; none: no such name

 private:
  struct Entry {
    Time since;                                // its first request
    std::map<int, ReductionRequest> requests;  // by rank
  };
  struct Ready {
    ReductionRequest request;
    std::optional<rpc::Error> error;
  };
  void make_ready(const std::string& name, std::optional<rpc::Error> error);
  static std::optional<rpc::Error> difference(const Entry& entry);

  const int ranks_;
  std::map<std::string, Entry> waiting_;  // for ranks
  std::vector<Ready> ready_;
  std::uint64_t ready_bytes_ = 0;
  std::set<int> closed_;
};

}  // namespace weft::data_parallel
