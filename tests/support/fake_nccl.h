// FakeNccl: NCCL's C interface for ranks in one process, without a GPU, and with faults that tests plant.
//
// Ranks are communicators that find each other by a unique id. As in NCCL, non-blocking calls return
// in_progress and are polled, new communicators are written to the caller's pointer, and an operation
// completes after all ranks have begun it. Memory is the host's; a stream is any pointer, and an operation on
// it runs at once, or when `enqueue` runs it. Calls that NCCL leaves undefined are not executed but noted in
// misuse(), which a test expects to be empty: two threads inside one communicator, use after its end, an
// abort while a thread is inside. Thread-safe.
#pragma once

#include <weft/parallel/collectives/nccl/internal/api.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <tuple>
#include <vector>

namespace weft::test {
class FakeNccl;
struct FakeClique;
struct FakeWork;
}  // namespace weft::test

namespace weft::collectives::nccl {
struct Comm {
  std::shared_ptr<test::FakeClique> clique;
  int rank = 0;  // selects the planted faults
  Result error = Result::success;
  bool settling = true;  // NCCL still creates or closes it
  bool dead = false, finalized = false;
  int polls = 0;  // number of further polls that return in_progress
  std::uint64_t collectives = 0;
  std::thread::id inside;
  int depth = 0;  // nested calls inside
  std::vector<std::shared_ptr<test::FakeWork>> works;
  std::map<int, double> factors;  // operators of this communicator
};
}  // namespace weft::collectives::nccl

namespace weft::test {

using collectives::nccl::Comm;

struct FakeWork {
  bool ended = false;
};

struct FakeOp {
  enum class Kind { all_reduce, reduce, broadcast, all_gather, reduce_scatter, send, recv };
  Kind kind;
  const void* in;
  void* out;
  std::size_t count;
  collectives::nccl::DataType type;
  int op = 0, peer = 0;  // peer: the root, or the other rank
  Comm* comm = nullptr;
  collectives::nccl::Stream stream = nullptr;
  std::uint64_t sequence = 0;
  double factor = 1;
  std::shared_ptr<FakeWork> work = nullptr;
  std::vector<char> read{};  // the contents of `in` when the stream reached the operation
};

struct FakeClique {
  int size = 0;
  std::vector<Comm*> members;  // by rank; null: has not arrived
  std::map<std::uint64_t, std::vector<FakeOp>> collectives;
  std::map<std::pair<int, int>, std::deque<FakeOp>> sends, recvs;  // by from, to
  std::vector<std::pair<Comm**, Comm*>> late;  // the handles that are written when all ranks have arrived
  // An aborted communicator does not access memory.
  void forget(const Comm* comm) {
    const auto of_it = [comm](const FakeOp& op) { return op.comm == comm; };
    for (auto& [sequence, ops] : collectives) std::erase_if(ops, of_it);
    for (auto* ways : {&sends, &recvs})
      for (auto& [way, ops] : *ways) std::erase_if(ops, of_it);
  }
  bool complete() const { return std::count(members.begin(), members.end(), nullptr) == 0; }
};

class FakeNccl {
 public:
  using Api = collectives::nccl::Api;
  using Result = collectives::nccl::Result;
  using DataType = collectives::nccl::DataType;
  using Stream = collectives::nccl::Stream;
  using UniqueId = collectives::nccl::UniqueId;
  using Job = std::function<void()>;

  // The faults of one rank.
  struct Faults {
    Result init = Result::success;    // result of creating a communicator
    bool init_hangs = false;          // never completes
    bool late_handle = false;         // is written when all ranks have arrived
    int init_polls = 2;               // polls that return in_progress
    Result launch = Result::success;  // result of the end of a group
    int launch_polls = 0;             // polls that return in_progress after a group
    bool never_ends = false;          // its operations never end
    bool never_closes = false;
  };

  FakeNccl() = default;
  FakeNccl(const FakeNccl&) = delete;
  FakeNccl& operator=(const FakeNccl&) = delete;

  // The FakeNccl must outlive the table.
  std::shared_ptr<const Api> api();

  Faults& faults(int rank) { return faults_[rank]; }  // set before threads start
  std::function<void(Stream, Job)> enqueue;           // empty: runs at once
  // Called after the calls of a group are enqueued. The stream stops until the function returns true. Empty:
  // only events wait for the operations.
  std::function<void(Stream, std::function<bool()>)> block;
  std::string last_error = "an error of the fake";

  // All communicators of the rank get the error, and polls return it.
  void fail(int rank, Result error) {
    std::lock_guard lock(mutex_);
    for (const auto& comm : comms_)
      if (comm->rank == rank && !comm->dead) comm->error = error;
  }
  // The process of the rank has ended: the other ranks of its communicators get remote_error.
  void kill(int rank) {
    std::lock_guard lock(mutex_);
    for (const auto& comm : comms_) {
      const bool concerned = !comm->dead && comm->clique && comm->rank != rank &&
                             std::any_of(comm->clique->members.begin(), comm->clique->members.end(),
                                         [&](const Comm* other) { return other && other->rank == rank; });
      if (concerned) comm->error = Result::remote_error;
    }
  }
  // The next group of that rank stays inside NCCL until the test releases it.
  void hold(int rank) {
    std::lock_guard lock(mutex_);
    held_.insert(rank);
  }
  void let_go(int rank) {
    std::lock_guard lock(mutex_);
    held_.erase(rank);
    changed_.notify_all();
  }
  void wait_until_held(int rank) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return holding_.contains(rank); });
  }

  // Returns a function that returns whether the present operations of the stream have ended, as an event
  // does.
  std::function<bool()> mark(Stream stream) {
    std::lock_guard lock(mutex_);
    return [this, works = streams_[stream]] {
      std::lock_guard lock(mutex_);
      return std::all_of(works.begin(), works.end(), [](const auto& work) { return work->ended; });
    };
  }

  std::vector<std::string> misuse() const {
    std::lock_guard lock(mutex_);
    return misuse_;
  }
  std::vector<std::string> calls(int rank) const {  // "all_reduce 4", in the order of the launches
    std::lock_guard lock(mutex_);
    const auto found = calls_.find(rank);
    return found == calls_.end() ? std::vector<std::string>{} : found->second;
  }
  // The ranks whose communicators were aborted, by group.
  std::vector<std::vector<int>> aborts() const {
    std::lock_guard lock(mutex_);
    return aborts_;
  }
  std::size_t alive() const {  // communicators
    std::lock_guard lock(mutex_);
    return static_cast<std::size_t>(
        std::count_if(comms_.begin(), comms_.end(), [](const auto& comm) { return !comm->dead; }));
  }
  std::size_t sent() const {  // messages between two ranks
    std::lock_guard lock(mutex_);
    return sent_;
  }
  bool idle_threads() const {  // no thread has an open group
    std::lock_guard lock(mutex_);
    return std::all_of(groups_.begin(), groups_.end(), [](const auto& one) { return one.second.depth == 0; });
  }
  int operators() const {  // created and not destroyed
    std::lock_guard lock(mutex_);
    return operators_;
  }

 private:
  using Lock = std::unique_lock<std::recursive_mutex>;
  struct Group {
    int depth = 0;
    std::vector<int> aborted;  // the ranks of its communicators
    std::vector<FakeOp> ops;
  };

  void note(const std::string& what) { misuse_.push_back(what); }

  // Enters a call inside NCCL with a communicator. Returns false if the call is misuse.
  bool enter(Comm* comm, const char* what) {
    if (comm->dead) {
      note(std::string(what) + " after its end");
      return false;
    }
    if (comm->depth != 0 && comm->inside != std::this_thread::get_id()) {
      note(std::string(what) + " while another thread is inside");
      return false;
    }
    comm->inside = std::this_thread::get_id();
    ++comm->depth;
    return true;
  }
  void leave(Comm* comm) { --comm->depth; }
  template <class F>
  Result within(Comm* comm, const char* what, F&& f) {
    std::lock_guard lock(mutex_);
    if (!enter(comm, what)) return Result::invalid_usage;
    const Result result = f();
    leave(comm);
    return result;
  }

  Comm* add(const std::shared_ptr<FakeClique>& clique, int rank) {
    comms_.push_back(std::make_unique<Comm>());
    Comm* const comm = comms_.back().get();
    comm->clique = clique;
    comm->rank = rank;
    comm->polls = faults_[rank].init_polls;
    clique->members[static_cast<std::size_t>(rank)] = comm;
    return comm;
  }
  static std::shared_ptr<FakeClique> clique_of(std::size_t size) {
    auto clique = std::make_shared<FakeClique>();
    clique->size = static_cast<int>(size);
    clique->members.resize(size, nullptr);
    return clique;
  }

  Result end_group();
  void arrive(FakeOp op);
  void finish(std::vector<FakeOp>& ops);
  static std::size_t item_size(DataType type) {
    switch (type) {
      case DataType::int8:
      case DataType::uint8:
      case DataType::float8_e4m3:
      case DataType::float8_e5m2:
        return 1;
      case DataType::float16:
      case DataType::bfloat16:
        return 2;
      case DataType::int64:
      case DataType::uint64:
      case DataType::float64:
        return 8;
      default:
        return 4;
    }
  }
  template <class T>
  static void reduce(std::vector<FakeOp>& ops, std::size_t from, std::size_t count, void* out);
  static void reduce_any(std::vector<FakeOp>& ops, std::size_t from, std::size_t count, void* out);

  mutable std::recursive_mutex mutex_;  // guards the members below
  std::condition_variable_any changed_;
  std::map<int, Faults> faults_;
  std::vector<std::unique_ptr<Comm>> comms_;  // never destroyed, to detect use after the end
  std::map<std::string, std::shared_ptr<FakeClique>> forming_;
  std::map<std::thread::id, Group> groups_;
  std::map<Stream, std::vector<std::shared_ptr<FakeWork>>> streams_;
  std::map<int, std::vector<std::string>> calls_;
  std::vector<std::vector<int>> aborts_;
  std::set<int> held_, holding_;
  std::size_t sent_ = 0;
  std::vector<std::string> misuse_;
  int operators_ = 0, ids_ = 0, next_operator_ = 5;
};

// --- Data ---

// Copies the sent bytes. If no bytes were sent, the buffer may be null.
inline void copy_read(const std::vector<char>& read, void* to) {
  if (!read.empty()) std::memcpy(to, read.data(), read.size());
}

template <class T>
void FakeNccl::reduce(std::vector<FakeOp>& ops, std::size_t from, std::size_t count, void* out) {
  using Wide = std::conditional_t<std::is_floating_point_v<T>, double, std::int64_t>;
  for (std::size_t i = 0; i < count; ++i) {
    Wide value{};
    for (std::size_t r = 0; r < ops.size(); ++r) {
      T item;
      std::memcpy(&item, ops[r].read.data() + (from + i) * sizeof(T), sizeof(T));
      const auto one = static_cast<Wide>(static_cast<double>(item) * ops[r].factor);
      const int op = ops[r].op;
      if (r == 0) {
        value = one;
      } else if (op == 1) {
        value *= one;
      } else if (op == 2) {
        value = std::max(value, one);
      } else if (op == 3) {
        value = std::min(value, one);
      } else {
        value += one;
      }
    }
    if (ops[0].op == 4) value /= static_cast<Wide>(ops.size());
    const T item = static_cast<T>(value);
    std::memcpy(static_cast<char*>(out) + i * sizeof(T), &item, sizeof(T));
  }
}

inline void FakeNccl::reduce_any(std::vector<FakeOp>& ops, std::size_t from, std::size_t count, void* out) {
  switch (ops[0].type) {
    case DataType::float32:
      return reduce<float>(ops, from, count, out);
    case DataType::float64:
      return reduce<double>(ops, from, count, out);
    case DataType::int32:
      return reduce<std::int32_t>(ops, from, count, out);
    case DataType::int64:
      return reduce<std::int64_t>(ops, from, count, out);
    case DataType::uint8:
      return reduce<std::uint8_t>(ops, from, count, out);
    default:
      std::terminate();  // not needed by any test
  }
}

// Whether the ranks have called the same operation. If they have not, the operation does not end before it is
// aborted: in NCCL, too, ranks then wait for messages that no rank sends.
inline bool agree(const std::vector<FakeOp>& ops) {
  static constexpr int made = 5;  // the first operator that a communicator creates; each rank has its own
  const auto meaning = [](const FakeOp& op) {
    return std::tuple(op.kind, op.count, op.type, std::min(op.op, made), op.peer);
  };
  return std::all_of(ops.begin(), ops.end(),
                     [&](const FakeOp& op) { return meaning(op) == meaning(ops.front()); });
}

inline void FakeNccl::finish(std::vector<FakeOp>& ops) {
  using Kind = FakeOp::Kind;
  std::sort(ops.begin(), ops.end(), [](const auto& a, const auto& b) { return a.comm->rank < b.comm->rank; });
  const FakeOp& first = ops[0];
  const std::size_t bytes = first.count * item_size(first.type);
  for (std::size_t r = 0; r < ops.size(); ++r) {
    FakeOp& op = ops[r];
    if (op.kind == Kind::all_reduce) reduce_any(ops, 0, op.count, op.out);
    if (op.kind == Kind::reduce && op.peer == static_cast<int>(r)) reduce_any(ops, 0, op.count, op.out);
    if (op.kind == Kind::reduce_scatter) reduce_any(ops, r * op.count, op.count, op.out);
    if (op.kind == Kind::broadcast) copy_read(ops[static_cast<std::size_t>(op.peer)].read, op.out);
    if (op.kind == Kind::all_gather)
      for (std::size_t i = 0; i < ops.size(); ++i)
        copy_read(ops[i].read, static_cast<char*>(op.out) + i * bytes);
  }
  for (FakeOp& op : ops) op.work->ended = true;
}

// The stream has reached the operation.
inline void FakeNccl::arrive(FakeOp op) {
  using Kind = FakeOp::Kind;
  std::lock_guard lock(mutex_);
  if (op.work->ended || faults_[op.comm->rank].never_ends) return;  // ended by an abort
  FakeClique& clique = *op.comm->clique;
  if (op.kind != Kind::recv) {
    const std::size_t parts = op.kind == Kind::reduce_scatter ? static_cast<std::size_t>(clique.size) : 1;
    const auto* from = static_cast<const char*>(op.in);
    op.read.assign(from, from + parts * op.count * item_size(op.type));
  }
  if (op.kind == Kind::send || op.kind == Kind::recv) {
    const bool sends = op.kind == Kind::send;
    if (sends) ++sent_;
    const std::pair way = sends ? std::pair(op.comm->rank, op.peer) : std::pair(op.peer, op.comm->rank);
    (sends ? clique.sends : clique.recvs)[way].push_back(std::move(op));
    auto &sent = clique.sends[way], &wanted = clique.recvs[way];
    if (sent.empty() || wanted.empty()) return;
    const FakeOp &from = sent.front(), &to = wanted.front();
    if (from.count != to.count || from.type != to.type) return;  // as above
    copy_read(sent.front().read, wanted.front().out);
    sent.front().work->ended = wanted.front().work->ended = true;
    sent.pop_front();
    wanted.pop_front();
    return;
  }
  auto& ops = clique.collectives[op.sequence];
  const std::uint64_t sequence = op.sequence;
  ops.push_back(std::move(op));
  if (static_cast<int>(ops.size()) < clique.size) return;
  if (agree(ops)) finish(ops);
  clique.collectives.erase(sequence);
}

inline FakeNccl::Result FakeNccl::end_group() {
  std::vector<FakeOp> ops;
  std::set<Comm*> inside;
  Result result = Result::success;
  {
    Lock lock(mutex_);
    Group& group = groups_[std::this_thread::get_id()];
    if (--group.depth > 0) return Result::success;
    ops = std::exchange(group.ops, {});
    if (!group.aborted.empty()) aborts_.push_back(std::exchange(group.aborted, {}));
    for (FakeOp& op : ops) {
      inside.insert(op.comm);
      const Faults& faults = faults_[op.comm->rank];
      if (faults.launch != Result::success) result = faults.launch;
      if (held_.contains(op.comm->rank)) {
        holding_.insert(op.comm->rank);
        changed_.notify_all();
        changed_.wait(lock, [&] { return !held_.contains(op.comm->rank); });
        holding_.erase(op.comm->rank);
      }
    }
    if (result == Result::success)
      for (FakeOp& op : ops) {
        const bool collective = op.kind != FakeOp::Kind::send && op.kind != FakeOp::Kind::recv;
        if (collective) op.sequence = op.comm->collectives++;
        op.work = std::make_shared<FakeWork>();
        op.comm->works.push_back(op.work);
        op.comm->polls = faults_[op.comm->rank].launch_polls;
        streams_[op.stream].push_back(op.work);
        static constexpr const char* names[] = {"all_reduce",     "reduce", "broadcast", "all_gather",
                                                "reduce_scatter", "send",   "recv"};
        calls_[op.comm->rank].push_back(names[static_cast<int>(op.kind)] + (" " + std::to_string(op.count)));
      }
    // Each call of the group has entered its communicator.
    for (FakeOp& op : ops) leave(op.comm);
  }
  if (result != Result::success) return result;
  for (FakeOp& op : ops) {
    Job job = [this, op] { arrive(op); };
    if (enqueue) {
      enqueue(op.stream, std::move(job));
    } else {
      job();
    }
  }
  if (block) {
    std::set<Stream> used;
    for (const FakeOp& op : ops) used.insert(op.stream);
    for (const Stream stream : used) block(stream, mark(stream));
  }
  std::lock_guard lock(mutex_);
  const bool waits =
      std::any_of(inside.begin(), inside.end(), [](const Comm* comm) { return comm->polls > 0; });
  return waits ? Result::in_progress : Result::success;
}

}  // namespace weft::test

#include "tests/support/fake_nccl_table.h"
