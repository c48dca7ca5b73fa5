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
  std::int64_t rows = 0;  // of this rank's sparse tensor
};
WEFT_CODEC(ReductionRequest, name, meaning, kind, bytes, form, rows)

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

  // A rank requests a name again only after its launch was planned.
  void add(int rank, ReductionRequest request, Time now);
  // This rank makes no further requests. Requests that still need it fail with failed_precondition, now and
  // later.
  void close(int rank);
  bool is_closed(int rank) const { return closed_.contains(rank); }
  // This rank makes no further requests until all ranks have joined.
  void join(int rank);
  // Whether some request of this rank is not planned yet.
  bool has_requests_of(int rank) const;

  // The bytes of the requests that are ready and not planned, and whether there are any.
  std::uint64_t ready_bytes() const { return ready_bytes_; }
  bool has_ready() const { return !ready_.empty() || join_end_; }
  bool has_waiting() const { return !waiting_.empty(); }  // for ranks
  // Plans all ready requests. fusion_bytes: the maximum size of a launch of several requests. max_request: a
  // larger request in host memory is launched alone.
  std::vector<ReductionLaunch> plan(std::uint64_t fusion_bytes,
                                    std::uint64_t max_request = std::numeric_limits<std::uint64_t>::max());

  // Returns the end of a join once. Call it after plan(), whose launches contain all requests from before the
  // end.
  struct JoinEnd {
    int last = 0;            // the rank that joined last
    std::string error = {};  // not empty: a rank has closed, and cannot join
  };
  std::optional<JoinEnd> take_join_end() { return std::exchange(join_end_, std::nullopt); }

  // A request that some ranks are ready for, the first of them since `since`, and that the missing ranks have
  // not made.
  struct Stall {
    std::string name;
    Time since;
    std::vector<int> ready, missing;
    std::string text() const;  // "ready on ranks 0, 2; missing ranks 1, 3"
  };
  // The requests that have waited for `limit` or longer at `now`, the oldest first.
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
    std::vector<std::int64_t> rows = {};
    bool has_zeros = false;  // of ranks that have joined
  };
  void make_ready(const std::string& name, std::optional<rpc::Error> error);
  bool is_complete(const Entry& entry) const;
  std::optional<rpc::Error> error_of(const Entry& entry) const;
  void end_join(int last);

  const int ranks_;
  std::map<std::string, Entry> waiting_;  // for ranks
  std::vector<Ready> ready_;
  std::uint64_t ready_bytes_ = 0;
  std::set<int> closed_, joined_;
  std::optional<JoinEnd> join_end_;
};

}  // namespace weft::data_parallel
