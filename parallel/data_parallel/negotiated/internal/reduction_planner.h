// ReductionPlanner: decides which named all-reduces start, in which order, and which are fused into one.
//
// The ranks of a group request all-reduces by name, in any order. A request is ready when all ranks have made
// it. Ready requests are planned in the order in which they became ready. Requests of one kind are fused into
// one launch up to a number of bytes; a larger request is launched alone. If the ranks' requests of one name
// differ, the launch has the error for all ranks. A rank that has joined counts as ready for all names, and
// contributes zeros. Rank 0 of a NegotiatedReduction owns the planner and sends its launches to all ranks, so
// that all ranks execute one plan. The planner uses no transport, LibTorch or clock: times are arguments. Not
// thread-safe.
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

// The form of a tensor, from which a rank that has joined creates zeros.
struct ReductionForm {
  std::uint8_t dtype = 0;           // an at::ScalarType
  std::uint8_t op = 0;              // a ReduceOp::Kind
  std::uint8_t place = 0;           // 0: host memory; i: the device i - 1 of NegotiationOptions::devices
  std::int64_t sparse_dim = 0;      // 0: dense
  std::vector<std::int64_t> sizes;  // of a sparse tensor; for dense ones, the number of all elements
};
WEFT_CODEC(ReductionForm, dtype, op, place, sparse_dim, sizes)

// One rank is ready to reduce the tensors of this name.
struct ReductionRequest {
  std::string name;
  std::string meaning;      // shapes, dtype, place, operation and factors: equal on all ranks
  std::string kind;         // requests of one kind may be fused: dtype, place, operation and factors
  std::uint64_t bytes = 0;  // of all its tensors
  ReductionForm form = {};
  std::int64_t rows = 0;     // of this rank's sparse tensor
  std::string refusal = {};  // not empty: why this rank refuses its tensors; then the name fails on all ranks
};
WEFT_CODEC(ReductionRequest, name, meaning, kind, bytes, form, rows, refusal)

// The next operation of all ranks: one collective for all these names, or the gather of one sparse tensor, or
// the failure of all these names.
struct ReductionLaunch {
  std::vector<std::string> names;
  std::string error = {};                 // empty: none
  std::uint16_t kind = 0;                 // of the error, an rpc::ErrorKind
  std::vector<std::int64_t> rows = {};    // by rank, of a sparse tensor
  std::vector<ReductionForm> forms = {};  // of the names, if some rank has joined
};
WEFT_CODEC(ReductionLaunch, names, error, kind, rows, forms)

class WEFT_EXPORT ReductionPlanner {
 public:
  // The time of a request.
  using Time = rpc::Clock::time_point;

  // ranks: the number of ranks.
  explicit ReductionPlanner(int ranks) : ranks_(ranks) {}

  // A rank requests a name again only after the launch of that name was planned.
  void add(int rank, ReductionRequest request, Time now);
  // This rank makes no further requests. Requests that still need this rank fail with failed_precondition,
  // now and later.
  void close(int rank);
  bool is_closed(int rank) const { return closed_.contains(rank); }
  // This rank makes no further requests until all ranks have joined.
  void join(int rank);
  // Whether some request of this rank is not planned yet.
  bool has_requests_of(int rank) const;

  // ready_bytes(): the bytes of the requests that are ready and not planned. has_ready(): whether such a
  // request exists, or a join has ended (take_join_end()).
  std::uint64_t ready_bytes() const { return ready_bytes_; }
  bool has_ready() const { return !ready_.empty() || join_end_; }
  bool has_waiting() const { return !waiting_.empty(); }  // a request waits for ranks
  // Plans all ready requests. fusion_bytes: the maximum size of a launch of several requests. max_request: a
  // larger request in host memory is launched alone.
  std::vector<ReductionLaunch> plan(std::uint64_t fusion_bytes,
                                    std::uint64_t max_request = std::numeric_limits<std::uint64_t>::max());

  // Returns the end of a join; a further call returns nullopt. Call it after plan(): the launches of plan()
  // contain all requests that were made before the end.
  struct JoinEnd {
    int last = 0;            // the rank that joined last
    std::string error = {};  // not empty: a rank has closed, and cannot join
  };
  std::optional<JoinEnd> take_join_end() { return std::exchange(join_end_, std::nullopt); }

  // A name that the ranks in `ready` have requested, the first of them at `since`, and that the ranks in
  // `missing` have neither requested nor joined.
  struct Stall {
    std::string name;
    Time since;
    std::vector<int> ready, missing;
    std::string text() const;  // "ready on ranks 0, 2; missing ranks 1, 3"
  };
  // The requests that have waited for `limit` or longer at `now`, the oldest first.
  std::vector<Stall> stalled(Time now, std::chrono::nanoseconds limit) const;
  std::optional<Time> oldest() const;  // the earliest Stall::since; nullopt: no request waits

 private:
  struct Entry {
    Time since;                                // its first request
    std::map<int, ReductionRequest> requests;  // by rank
  };
  struct Ready {
    ReductionRequest request;
    std::optional<rpc::Error> error;
    std::vector<std::int64_t> rows = {};
    bool has_zeros = false;  // of ranks that have joined
  };
  void make_ready(const std::string& name, std::optional<rpc::Error> error);
  bool is_complete(const Entry& entry) const;
  std::optional<rpc::Error> error_of(const Entry& entry) const;
  void end_join(int last);

  const int ranks_;
  std::map<std::string, Entry> waiting_;  // by name: requests that wait for ranks
  std::vector<Ready> ready_;
  std::uint64_t ready_bytes_ = 0;
  std::set<int> closed_, joined_;
  std::optional<JoinEnd> join_end_;
};

}  // namespace weft::data_parallel
