// Communicator: one of NCCL's communicators, non-blocking, as one rank has it.
//
//   auto id = Communicator::unique_id(*device.api);        // on one rank, which gives it to all others
//   auto comm = co_await Communicator::create(device, id, size, rank);
//   co_await comm->launch({.stream = stream, .what = "all_reduce", .mark = event_on(stream)}, [&](Calls&
//   calls) {
//     calls.all_reduce(in, out, count, DataType::float32, RedOp::sum); });
//
// A launch puts one of NCCL's groups on a stream and returns once it is there; its future completes when the
// device is done with it. Any failure, of NCCL's calls, of its asynchronous errors, or because a deadline has
// passed, ends the communicator with one rpc::Error: options.on_failure is called at once and notifies the
// other ranks; the communicator is aborted, or kept for shrink(), and then its futures fail. No thread is
// inside NCCL with it during an abort: `inside_` is handed over. Shared: work in flight holds it.
// Thread-safe; functions that block are marked below, and must not be called on a loop.
#pragma once

#include <weft/parallel/collectives/nccl/device.h>
#include <weft/parallel/collectives/nccl/entrance.h>
#include <weft/rpc/core/future.h>
#include <weft/rpc/core/mutex.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace weft::collectives::nccl {

// The options of a communicator on this rank; they may differ between ranks.
struct CommunicatorOptions {
  std::string name;  // in errors
  // Of the creation, and of launches that give none.
  std::chrono::nanoseconds timeout = std::chrono::minutes{10};
  // How long abort() waits for a thread that is inside NCCL; then the communicator is given up as it is.
  std::chrono::nanoseconds abort_timeout = std::chrono::seconds{10};

  bool abort_on_failure = true;  // false: the owner must shrink() or abort()
  // Called once, on any thread; must not block. Not called for abort() and close().
  std::function<void(const rpc::Error&)> on_failure;
};

// The contents of one group; used by the thread that launches, until its function returns. Counts are of
// NCCL's elements. Throws the errors of NCCL.
class WEFT_EXPORT Calls {
 public:
  // Add NCCL's function of that name to the group. in, out: memory of the device, valid until the launch has
  // completed. count: the elements of one rank's part for all_gather (input) and reduce_scatter (output),
  // otherwise those of the whole buffer.
  void all_reduce(const void* in, void* out, std::size_t count, DataType type, RedOp op);
  void reduce(const void* in, void* out, std::size_t count, DataType type, RedOp op, int root);
  void broadcast(const void* in, void* out, std::size_t count, DataType type, int root);
  void all_gather(const void* in, void* out, std::size_t count, DataType type);
  void reduce_scatter(const void* in, void* out, std::size_t count, DataType type, RedOp op);
  void send(const void* in, std::size_t count, DataType type, int to);
  void recv(void* out, std::size_t count, DataType type, int from);
  // For this group only; `factor` has the type's own bits.
  RedOp premul_sum(const void* factor, DataType type);

 private:
  friend class Communicator;
  Calls(const Api& api, Comm* comm, Stream stream, const std::string& what)
      : api_(api), comm_(comm), stream_(stream), what_(what) {}
  void check(Result result) const;
  void destroy_ops();
  const Api& api_;
  Comm* const comm_;
  const Stream stream_;
  const std::string& what_;
  std::vector<RedOp> ops_;
};

// One launch: where, for how long, and how its end is detected.
struct Launch {
  Stream stream = nullptr;                          // null: the device's default stream
  std::string what;                                 // in errors: "all_reduce float32[4]"
  std::optional<std::chrono::nanoseconds> timeout;  // to launch, then to complete; none: the communicator's
  LaunchTurn turn;                                  // none: one is reserved when launch() is called
  std::shared_ptr<const void> keeps;                // until NCCL has released it
  // Called when the group is on the stream. Returns a function that reports whether the stream has passed it,
  // which must not block. If it returns nothing (a graph is captured), the launch is complete when it is on
  // the stream.
  std::function<std::function<bool()>()> mark;
  // false: launch() returns before the group is on the stream, so `mark` is called later, by the device's
  // loop. Nothing else is launched meanwhile.
  bool waits = true;
};

class WEFT_EXPORT Communicator final : public Watched, public std::enable_shared_from_this<Communicator> {
 public:
  using Ptr = std::shared_ptr<Communicator>;  // null only as the result of split() for no_color

  // Call it on one rank, which sends the id to the others. Throws the errors of NCCL. May block.
  static UniqueId unique_id(const Api& api);
  // Call it on all ranks. deadline_exceeded if some do not arrive; cancel() of the future ends it.
  static rpc::Future<Ptr> create(Device device, UniqueId id, int size, int rank,
                                 CommunicatorOptions options = {});
  // A new rank of a communicator that the others grow(); unsupported before NCCL 2.29.
  static rpc::Future<Ptr> join(Device device, UniqueId grow_id, int size, int rank,
                               CommunicatorOptions options = {});
  ~Communicator() override;

  // Constant. name(): of its options.
  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& name() const { return options_.name; }
  const Device& device() const { return device_; }

  std::optional<rpc::Error> failure() const;  // why it has ended

  // Blocks until the group is on the stream, if the launch waits: at most as long as NCCL takes to connect
  // the ranks, and until the deadline. Throws the communicator's error if nothing is started. A later
  // failure, including an exception of `group`, ends the communicator, because other ranks have started, and
  // fails the future: NCCL may still be running it.
  rpc::Future<void> launch(Launch launch, const std::function<void(Calls&)>& group);

  // Call the following on all ranks; until they complete, this communicator launches nothing.
  // failed_precondition while work is in flight, which only shrink() with `abort` ends. For ranks of one
  // color, ordered by key, then rank; null for no_color.
  rpc::Future<Ptr> split(int color, int key, CommunicatorOptions options = {});
  // For the survivors, without `gone`; ranks keep their order. abort: after a failure; it ends work in flight
  // and this communicator. unsupported before NCCL 2.27.
  rpc::Future<Ptr> shrink(std::vector<int> gone, bool abort, CommunicatorOptions options = {});
  // To `size` ranks; the new ones join(). The rank that has created the id gives it. unsupported before 2.29.
  UniqueId grow_id();
  rpc::Future<Ptr> grow(int size, std::optional<UniqueId> id, CommunicatorOptions options = {});

  // An orderly end, when all launches are done. Aborts if some ranks do not close in time; no time given: as
  // long as for the creation.
  rpc::Future<void> close(std::optional<std::chrono::nanoseconds> limit = {});
  // Ends work in flight. Completes once NCCL has released it; deadline_exceeded if it did not.
  rpc::Future<void> abort(const std::string& reason);

  // Calls f with the communicator's handle, as the one thread inside NCCL with it; may block. false: it has
  // ended. For resources of a communicator (memory.h).
  bool inside(const std::function<void(Comm*)>& f);

  bool look(rpc::Clock::time_point now) override;

 private:
  class Making;   // of one that NCCL has not completed yet
  class Closing;  // flushed and then destroyed
  struct Flight {
    std::string what;
    rpc::Clock::time_point deadline;
    std::function<bool()> ended;
    std::function<std::function<bool()>()> mark;  // null: it is on the stream
    std::shared_ptr<const void> keeps;
    void let_go() { ended = nullptr, mark = nullptr, keeps = nullptr; }  // releases tensors: outside the lock
    rpc::Promise<void> promise;
  };
  Communicator(Device device, Comm* handle, int size, int rank, CommunicatorOptions options);

  using Begin = std::function<Result(Comm* parent, Comm** made, Config* config)>;
  struct Plan;  // of a creation
  static rpc::Future<Ptr> make(Plan plan);
  rpc::Future<Ptr> make_of_this(std::string what, bool aborts, bool may_be_none, Begin begin,
                                CommunicatorOptions options);

  bool look_within(rpc::Clock::time_point now);  // its device
  std::string prefix() const;
  void refuse_if_over() const;
  void put(const Launch& launch, const std::function<void(Calls&)>& group, bool& begun);
  void wait_until_launched(const std::string& what, rpc::Clock::time_point deadline);
  [[noreturn]] void fail_and_throw(const rpc::Error& error);
  void fail(const rpc::Error& error);
  bool end(const rpc::Error& error);  // whether it had not ended before
  void start_abort();
  Comm* take();
  void let_go();  // blocks
  Aborts::Done aborted_here();
  void aborted(Result result, const std::optional<std::string>& why);
  void has_let_go(rpc::Result<void> result);
  void end_flights();

  const Device device_;
  const int size_, rank_;
  const CommunicatorOptions options_;

  // Locked by a thread that is inside NCCL with this communicator, never for long: it is non-blocking.
  // Guards:
  Entrance inside_;
  Comm* handle_;

  mutable rpc::Mutex mutex_;  // taken after inside_, or alone
  std::optional<rpc::Error> over_ WEFT_GUARDED_BY(mutex_);
  bool busy_ WEFT_GUARDED_BY(mutex_) = false;      // being split, shrunk, grown or closed
  bool aborting_ WEFT_GUARDED_BY(mutex_) = false;  // and, once it is done:
  std::optional<rpc::Result<void>> let_go_ WEFT_GUARDED_BY(mutex_);
  std::vector<rpc::Promise<void>> waiting_ WEFT_GUARDED_BY(mutex_);  // for the abort
  std::vector<Flight> flights_ WEFT_GUARDED_BY(mutex_);              // in the order of launches
};

}  // namespace weft::collectives::nccl
