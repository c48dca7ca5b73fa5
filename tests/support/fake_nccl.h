// FakeNccl: NCCL's C interface for ranks in one process, without a GPU, and with faults that tests plant.
//
// Ranks are communicators that meet by a unique id. As in NCCL, non-blocking calls give in_progress and are
// polled for, new communicators are written to where the caller said, and an operation ends once all ranks
// have begun it. Memory is the host's; a stream is any pointer, and what is put on it runs at once, or when
// `enqueue` has it run. What NCCL leaves undefined is not done but noted in misuse(), which a test expects to
// be empty: two threads inside one communicator, use after its end, an abort while a thread is inside, memory
// made or given back while work is in flight. Thread-safe.
#pragma once

#include <weft/parallel/collectives/nccl/api.h>

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
#include <vector>

namespace weft::test {
class FakeNccl;
struct FakeClique;
struct FakeWork;
}  // namespace weft::test

namespace weft::collectives::nccl {
struct Comm {
  std::shared_ptr<test::FakeClique> clique;
  int rank = 0, origin = 0;  // origin: its rank in the first communicator, by which faults are planted
  Result error = Result::success;
  bool settling = true;  // NCCL is at it: made, split, closed
  bool dead = false, finalized = false;
  int polls = 0;  // that still find it in progress
  std::uint64_t collectives = 0, splits = 0;
  std::thread::id inside;
  int depth = 0;  // of calls inside
  std::vector<std::shared_ptr<test::FakeWork>> works;
  std::map<int, double> factors;  // of operators made
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
  int op = 0, peer = 0;  // peer: root, or the other side
  Comm* comm = nullptr;
  collectives::nccl::Stream stream = nullptr;
  std::uint64_t sequence = 0;
  double factor = 1;
  std::shared_ptr<FakeWork> work = nullptr;
  std::vector<char> read{};  // what was in `in` when the stream came to it
};

struct FakeClique {
  int size = 0;
  std::vector<Comm*> members;  // by rank; null: has not come
  std::map<std::uint64_t, std::vector<FakeOp>> collectives;
  std::map<std::pair<int, int>, std::deque<FakeOp>> sends, recvs;  // by from, to
  struct Split {
    int color, key, rank;
    Comm* parent;
    Comm** slot;
  };
  std::map<std::uint64_t, std::vector<Split>> splits;
  std::map<std::vector<int>, std::vector<Split>> shrinks;
  std::vector<Split> grows;
  std::string grow_id;
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

  // Of one rank of the first communicator, and of those made of it.
  struct Faults {
    Result init = Result::success;    // what making one gives
    bool init_hangs = false;          // never done
    int init_polls = 2;               // that find it in progress
    Result launch = Result::success;  // what the end of a group gives
    int launch_polls = 0;             // that find it in progress, after a group
    bool never_ends = false;          // what it launches
    bool never_closes = false;
  };

  explicit FakeNccl(int version = 23007) : version_(version) {}
  FakeNccl(const FakeNccl&) = delete;
  FakeNccl& operator=(const FakeNccl&) = delete;

  // Lives longer than the table.
  std::shared_ptr<const Api> api();

  Faults& faults(int rank) { return faults_[rank]; }  // before threads begin
  std::function<void(Stream, Job)> enqueue;           // empty: at once
  std::string last_error = "the fake says so";

  // All communicators of the rank get the error, as what is polled for.
  void fail(int rank, Result error) {
    std::lock_guard lock(mutex_);
    for (const auto& comm : comms_)
      if (comm->origin == rank && !comm->dead) comm->error = error;
  }
  // The rank's process is gone: others that it has a communicator with get remote_error.
  void kill(int rank) {
    std::lock_guard lock(mutex_);
    for (const auto& comm : comms_) {
      const bool concerned = !comm->dead && comm->clique && comm->origin != rank &&
                             std::any_of(comm->clique->members.begin(), comm->clique->members.end(),
                                         [&](const Comm* other) { return other && other->origin == rank; });
      if (concerned) comm->error = Result::remote_error;
    }
  }
  // The next group of that rank stays inside NCCL until it is let go.
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

  // Says whether what is on the stream by now has ended, as an event does.
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
  std::vector<std::string> calls(
      int rank) const {  // "all_reduce 4", in the order in which they were launched
    std::lock_guard lock(mutex_);
    const auto found = calls_.find(rank);
    return found == calls_.end() ? std::vector<std::string>{} : found->second;
  }
  std::size_t alive() const {  // communicators
    std::lock_guard lock(mutex_);
    return static_cast<std::size_t>(
        std::count_if(comms_.begin(), comms_.end(), [](const auto& comm) { return !comm->dead; }));
  }
  std::size_t memory() const {  // allocated and registered
    std::lock_guard lock(mutex_);
    return memory_;
  }
  int operators() const {  // made and not destroyed
    std::lock_guard lock(mutex_);
    return operators_;
  }

 private:
  using Lock = std::unique_lock<std::recursive_mutex>;
  struct Group {
    int depth = 0;
    std::vector<FakeOp> ops;
  };

  void note(const std::string& what) { misuse_.push_back(what); }

  // A call inside NCCL with a communicator; false: it must not be.
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

  Comm* add(const std::shared_ptr<FakeClique>& clique, int rank, int origin) {
    comms_.push_back(std::make_unique<Comm>());
    Comm* const comm = comms_.back().get();
    comm->clique = clique;
    comm->rank = rank;
    comm->origin = origin;
    comm->polls = faults_[origin].init_polls;
    clique->members[static_cast<std::size_t>(rank)] = comm;
    return comm;
  }
  static std::shared_ptr<FakeClique> clique_of(std::size_t size) {
    auto clique = std::make_shared<FakeClique>();
    clique->size = static_cast<int>(size);
    clique->members.resize(size, nullptr);
    return clique;
  }
  // The communicators of all who have come, in that order; written where they said.
  void make_of(const std::vector<FakeClique::Split>& parts) {
    const auto clique = clique_of(parts.size());
    int rank = 0;
    for (const auto& part : parts) {
      Comm* const made = add(clique, rank++, part.parent->origin);
      made->settling = faults_[made->origin].init_hangs;
      part.parent->settling = false;
      std::atomic_ref<Comm*>(*part.slot).store(made, std::memory_order_release);
    }
  }

  bool idle() const {
    return std::all_of(comms_.begin(), comms_.end(), [](const auto& comm) {
      return comm->dead || std::all_of(comm->works.begin(), comm->works.end(),
                                       [](const auto& work) { return work->ended; });
    });
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

  const int version_;
  mutable std::recursive_mutex mutex_;  // guards what follows
  std::condition_variable_any changed_;
  std::map<int, Faults> faults_;
  std::vector<std::unique_ptr<Comm>> comms_;  // for ever, so that use after the end is seen
  std::map<std::string, std::shared_ptr<FakeClique>> meeting_;
  std::map<std::string, std::pair<FakeClique*, std::map<int, Comm**>>>
      growing_;  // by id: by whom, and who joins
  std::map<std::thread::id, Group> groups_;
  std::map<Stream, std::vector<std::shared_ptr<FakeWork>>> streams_;
  std::map<int, std::vector<std::string>> calls_;
  std::set<int> held_, holding_;
  std::vector<std::string> misuse_;
  std::size_t memory_ = 0;
  int operators_ = 0, ids_ = 0, next_operator_ = 5;

  void try_to_grow(const std::string& id, int size);
};

// --- Data ---

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
      std::terminate();  // what no test needs
  }
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
    if (op.kind == Kind::broadcast)
      std::memcpy(op.out, ops[static_cast<std::size_t>(op.peer)].read.data(), bytes);
    if (op.kind == Kind::all_gather)
      for (std::size_t i = 0; i < ops.size(); ++i)
        std::memcpy(static_cast<char*>(op.out) + i * bytes, ops[i].read.data(), bytes);
  }
  for (FakeOp& op : ops) op.work->ended = true;
}

// The stream has come to it.
inline void FakeNccl::arrive(FakeOp op) {
  using Kind = FakeOp::Kind;
  std::lock_guard lock(mutex_);
  if (op.work->ended || faults_[op.comm->origin].never_ends) return;  // ended: by an abort
  FakeClique& clique = *op.comm->clique;
  if (op.kind != Kind::recv) {
    const std::size_t parts = op.kind == Kind::reduce_scatter ? static_cast<std::size_t>(clique.size) : 1;
    const auto* from = static_cast<const char*>(op.in);
    op.read.assign(from, from + parts * op.count * item_size(op.type));
  }
  if (op.kind == Kind::send || op.kind == Kind::recv) {
    const bool sends = op.kind == Kind::send;
    const std::pair way = sends ? std::pair(op.comm->rank, op.peer) : std::pair(op.peer, op.comm->rank);
    (sends ? clique.sends : clique.recvs)[way].push_back(std::move(op));
    auto &sent = clique.sends[way], &wanted = clique.recvs[way];
    if (sent.empty() || wanted.empty()) return;
    std::memcpy(wanted.front().out, sent.front().read.data(), sent.front().read.size());
    sent.front().work->ended = wanted.front().work->ended = true;
    sent.pop_front();
    wanted.pop_front();
    return;
  }
  auto& ops = clique.collectives[op.sequence];
  const std::uint64_t sequence = op.sequence;
  ops.push_back(std::move(op));
  if (static_cast<int>(ops.size()) < clique.size) return;
  finish(ops);
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
    for (FakeOp& op : ops) {
      inside.insert(op.comm);
      const Faults& faults = faults_[op.comm->origin];
      if (faults.launch != Result::success) result = faults.launch;
      if (held_.contains(op.comm->origin)) {
        holding_.insert(op.comm->origin);
        changed_.notify_all();
        changed_.wait(lock, [&] { return !held_.contains(op.comm->origin); });
        holding_.erase(op.comm->origin);
      }
    }
    if (result == Result::success)
      for (FakeOp& op : ops) {
        const bool collective = op.kind != FakeOp::Kind::send && op.kind != FakeOp::Kind::recv;
        if (collective) op.sequence = op.comm->collectives++;
        op.work = std::make_shared<FakeWork>();
        op.comm->works.push_back(op.work);
        op.comm->polls = faults_[op.comm->origin].launch_polls;
        streams_[op.stream].push_back(op.work);
        static constexpr const char* names[] = {"all_reduce",     "reduce", "broadcast", "all_gather",
                                                "reduce_scatter", "send",   "recv"};
        calls_[op.comm->origin].push_back(names[static_cast<int>(op.kind)] +
                                          (" " + std::to_string(op.count)));
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
  std::lock_guard lock(mutex_);
  const bool waits =
      std::any_of(inside.begin(), inside.end(), [](const Comm* comm) { return comm->polls > 0; });
  return waits ? Result::in_progress : Result::success;
}

inline void FakeNccl::try_to_grow(const std::string& id, int size) {
  auto& [parent, joining] = growing_[id];
  if (parent == nullptr || static_cast<int>(parent->grows.size()) < parent->size ||
      static_cast<int>(joining.size()) < size - parent->size)
    return;
  const auto clique = clique_of(static_cast<std::size_t>(size));
  const auto place = [&](int rank, int origin, Comm** slot) {
    Comm* const made = add(clique, rank, origin);
    made->settling = false;
    std::atomic_ref<Comm*>(*slot).store(made, std::memory_order_release);
  };
  for (const auto& part : parent->grows) {
    part.parent->settling = false;
    place(part.rank, part.parent->origin, part.slot);
  }
  for (const auto& [rank, slot] : joining) place(rank, rank, slot);
  parent->grows.clear();
  growing_.erase(id);
}

// --- The table ---

inline std::shared_ptr<const FakeNccl::Api> FakeNccl::api() {
  using collectives::nccl::Config;
  using collectives::nccl::RedOp;
  using Kind = FakeOp::Kind;
  auto table = std::make_shared<Api>();
  Api& api = *table;
  api.version = version_;

  api.get_unique_id = [this](UniqueId* id) {
    std::lock_guard lock(mutex_);
    std::snprintf(id->bytes.data(), id->bytes.size(), "fake %d", ++ids_);
    return Result::success;
  };
  api.comm_init_rank_config = [this](Comm** made, int ranks, UniqueId id, int rank, Config* config) {
    std::lock_guard lock(mutex_);
    if (config->blocking != 0) note("a blocking communicator");
    if (faults_[rank].init != Result::success) return faults_[rank].init;
    auto& clique = meeting_[id.bytes.data()];
    if (clique == nullptr) clique = clique_of(static_cast<std::size_t>(ranks));
    *made = add(clique, rank, rank);
    if (clique->complete()) {
      for (Comm* comm : clique->members) comm->settling = faults_[comm->origin].init_hangs;
      meeting_.erase(id.bytes.data());
    }
    return Result::in_progress;
  };
  api.comm_split = [this](Comm* comm, int color, int key, Comm** made, Config*) {
    return within(comm, "split", [&] {
      FakeClique& clique = *comm->clique;
      comm->settling = true;
      const std::uint64_t round = comm->splits++;
      auto& parts = clique.splits[round];
      parts.push_back({color, key, comm->rank, comm, made});
      if (static_cast<int>(parts.size()) < clique.size) return Result::in_progress;
      std::sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) {
        return std::tuple(a.color, a.key, a.rank) < std::tuple(b.color, b.key, b.rank);
      });
      std::map<int, std::vector<FakeClique::Split>> colors;
      for (const auto& part : parts) colors[part.color].push_back(part);
      for (const auto& [one, members] : colors) {
        if (one != collectives::nccl::no_color) {
          make_of(members);
        } else {
          for (const auto& member : members) member.parent->settling = false;
        }
      }
      clique.splits.erase(round);
      return Result::in_progress;
    });
  };
  api.comm_shrink = [this](Comm* comm, int* excluded, int count, Comm** made, Config*, int flags) {
    return within(comm, "shrink", [&] {
      if (flags == collectives::nccl::shrink_abort) {
        for (const auto& work : comm->works) work->ended = true;
      } else if (comm->error != Result::success) {
        return Result::invalid_usage;
      }
      comm->settling = comm->error == Result::success;
      std::vector<int> gone(excluded, excluded + count);
      std::sort(gone.begin(), gone.end());
      auto& parts = comm->clique->shrinks[gone];
      parts.push_back({0, 0, comm->rank, comm, made});
      if (static_cast<int>(parts.size()) < comm->clique->size - count) return Result::in_progress;
      std::sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
      make_of(parts);
      return Result::in_progress;
    });
  };
  if (version_ >= 22900) {
    api.comm_get_unique_id = [this](Comm* comm, UniqueId* id) {
      return within(comm, "get_unique_id", [&] {
        std::snprintf(id->bytes.data(), id->bytes.size(), "grown %d", ++ids_);
        return Result::success;
      });
    };
    api.comm_grow = [this](Comm* comm, int size, const UniqueId* id, int rank, Comm** made, Config*) {
      std::lock_guard lock(mutex_);
      if (comm == nullptr) {
        growing_[id->bytes.data()].second[rank] = made;
        try_to_grow(id->bytes.data(), size);
        return Result::in_progress;
      }
      return within(comm, "grow", [&] {
        comm->settling = true;
        comm->clique->grows.push_back({0, 0, comm->rank, comm, made});
        if (id != nullptr) {
          comm->clique->grow_id = id->bytes.data();
          growing_[comm->clique->grow_id].first = comm->clique.get();
        }
        if (!comm->clique->grow_id.empty()) try_to_grow(comm->clique->grow_id, size);
        return Result::in_progress;
      });
    };
  }
  api.comm_finalize = [this](Comm* comm) {
    return within(comm, "finalize", [&] {
      comm->settling = comm->finalized = true;
      const auto& all = comm->clique->members;
      if (std::all_of(all.begin(), all.end(), [](const Comm* one) { return one->finalized; }))
        for (Comm* one : all) one->settling = faults_[one->origin].never_closes;
      return Result::in_progress;
    });
  };
  api.comm_destroy = [this](Comm* comm) {
    return within(comm, "destroy", [&] {
      if (!comm->finalized || comm->settling) note("destroy before it was finalized");
      comm->dead = true;
      return Result::success;
    });
  };
  api.comm_abort = [this](Comm* comm) {
    return within(comm, "abort", [&] {
      if (comm->depth > 1) note("abort within a group");
      comm->dead = true;
      for (const auto& work : comm->works) work->ended = true;
      return Result::success;
    });
  };
  api.comm_get_async_error = [this](Comm* comm, Result* state) {
    return within(comm, "get_async_error", [&] {
      *state = comm->error;
      if (comm->error == Result::success && (comm->settling || comm->polls > 0)) {
        if (!comm->settling) --comm->polls;
        *state = Result::in_progress;
      }
      return Result::success;
    });
  };
  api.comm_count = [](const Comm* comm, int* count) {
    *count = comm->clique->size;
    return Result::success;
  };
  api.comm_user_rank = [](const Comm* comm, int* rank) {
    *rank = comm->rank;
    return Result::success;
  };
  api.get_error_string = [](Result result) {
    switch (result) {
      case Result::remote_error:
        return "remote process exited or there was a network error";
      case Result::system_error:
        return "unhandled system error";
      default:
        return "some error";
    }
  };
  api.get_last_error = [this](Comm*) { return last_error.c_str(); };

  api.group_start = [this] {
    std::lock_guard lock(mutex_);
    ++groups_[std::this_thread::get_id()].depth;
    return Result::success;
  };
  api.group_end = [this] { return end_group(); };
  const auto put = [this](FakeOp op) {
    std::lock_guard lock(mutex_);
    if (!enter(op.comm, "an operation")) return Result::invalid_usage;
    if (const auto found = op.comm->factors.find(op.op); found != op.comm->factors.end()) {
      op.factor = found->second;
      op.op = 0;
    }
    Group& group = groups_[std::this_thread::get_id()];
    if (group.depth == 0) note("an operation outside a group");
    group.ops.push_back(std::move(op));
    return Result::success;
  };
  api.all_reduce = [put](const void* in, void* out, std::size_t count, DataType type, RedOp op, Comm* comm,
                         Stream stream) {
    return put({Kind::all_reduce, in, out, count, type, static_cast<int>(op), 0, comm, stream});
  };
  api.reduce = [put](const void* in, void* out, std::size_t count, DataType type, RedOp op, int root,
                     Comm* comm, Stream stream) {
    return put({Kind::reduce, in, out, count, type, static_cast<int>(op), root, comm, stream});
  };
  api.broadcast = [put](const void* in, void* out, std::size_t count, DataType type, int root, Comm* comm,
                        Stream stream) {
    return put({Kind::broadcast, in, out, count, type, 0, root, comm, stream});
  };
  api.all_gather = [put](const void* in, void* out, std::size_t count, DataType type, Comm* comm,
                         Stream stream) {
    return put({Kind::all_gather, in, out, count, type, 0, 0, comm, stream});
  };
  api.reduce_scatter = [put](const void* in, void* out, std::size_t count, DataType type, RedOp op,
                             Comm* comm, Stream stream) {
    return put({Kind::reduce_scatter, in, out, count, type, static_cast<int>(op), 0, comm, stream});
  };
  api.send = [put](const void* in, std::size_t count, DataType type, int peer, Comm* comm, Stream stream) {
    return put({Kind::send, in, nullptr, count, type, 0, peer, comm, stream});
  };
  api.recv = [put](void* out, std::size_t count, DataType type, int peer, Comm* comm, Stream stream) {
    return put({Kind::recv, nullptr, out, count, type, 0, peer, comm, stream});
  };
  api.red_op_create_premul_sum = [this](RedOp* op, void* factor, DataType type, collectives::nccl::Residence,
                                        Comm* comm) {
    return within(comm, "premul_sum", [&] {
      double value = 0;
      if (type == DataType::float64) {
        std::memcpy(&value, factor, sizeof value);
      } else if (type == DataType::float32) {
        float narrow = 0;
        std::memcpy(&narrow, factor, sizeof narrow);
        value = static_cast<double>(narrow);
      } else {
        return Result::invalid_argument;
      }
      ++operators_;
      comm->factors[next_operator_] = value;
      *op = static_cast<RedOp>(next_operator_++);
      return Result::success;
    });
  };
  api.red_op_destroy = [this](RedOp op, Comm* comm) {
    return within(comm, "red_op_destroy", [&] {
      operators_ -= static_cast<int>(comm->factors.erase(static_cast<int>(op)));
      return Result::success;
    });
  };

  const auto memory = [this](int change, const char* what) {
    std::lock_guard lock(mutex_);
    if (!idle()) note(std::string(what) + " while work is in flight");
    memory_ += static_cast<std::size_t>(change);
    return Result::success;
  };
  api.mem_alloc = [memory](void** made, std::size_t bytes) {
    *made = ::operator new(bytes);
    return memory(1, "mem_alloc");
  };
  api.mem_free = [memory](void* given) {
    ::operator delete(given);
    return memory(-1, "mem_free");
  };
  api.comm_register = [memory](const Comm*, void* at, std::size_t, void** handle) {
    *handle = at;
    return memory(1, "comm_register");
  };
  api.comm_deregister = [memory](const Comm*, void*) { return memory(-1, "comm_deregister"); };
  return table;
}

}  // namespace weft::test
