// Communicator: one rank of one of NCCL's communicators, in non-blocking mode.
//
//   auto id = Communicator::unique_id(*device.api);        // on one rank, which sends it to all others
//   auto comm = co_await Communicator::create(device, id, size, rank);
//   co_await comm->launch(
//       {.stream = stream, .what = "all_reduce", .mark = event_on(stream)},
//       [&](Calls& calls) { calls.all_reduce(in, out, count, DataType::float32, RedOp::sum); });
//
// A launch puts a group of NCCL's calls on a stream, and returns when the group is there. The launch's future
// completes when the device has executed the group. Every failure ends the communicator with one rpc::Error:
// a failed call of NCCL, an asynchronous error of NCCL, or a deadline that has passed. options.on_failure is
// then called at once, and notifies the other ranks. After that the communicator is aborted, and then its
// futures fail. During an abort no thread is inside NCCL with this communicator: the
// abort takes the handle under `inside_`. Ownership is shared: work in flight keeps the communicator alive.
// Thread-safe; functions that block are marked below, and must not be called on a loop.
#pragma once

#include <weft/parallel/collectives/nccl/internal/device.h>
#include <weft/parallel/collectives/nccl/internal/entrance.h>
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
  // The timeout of the creation, and of launches that give none.
  std::chrono::nanoseconds timeout = std::chrono::minutes{10};
  // The time for which abort() waits for a thread that is inside NCCL. If the thread is still there after
  // this time, abort() fails, and the communicator is given up.
  std::chrono::nanoseconds abort_timeout = std::chrono::seconds{10};

  // Called once, on any thread; must not block. Not called for abort() and close().
  std::function<void(const rpc::Error&)> on_failure;
};

// The contents of one group of NCCL's calls. Only the thread that launches uses the object, until the
// function that was given to launch() returns. Counts are of NCCL's elements. Throws the errors of NCCL.
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
  // The result is valid in this group only. factor: points to one value of `type`.
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

// One launch: its stream, its timeout, and how its end is detected.
struct Launch {
  Stream stream = nullptr;  // null: the device's default stream
  std::string what;         // in errors: "all_reduce float32[4]"
  // Applies twice: from the call until the launch, and from the launch until its end. nullopt: the
  // communicator's timeout.
  std::optional<std::chrono::nanoseconds> timeout;
  LaunchTurn turn;                    // none: one is reserved when launch() is called
  std::shared_ptr<const void> keeps;  // kept alive until NCCL has released it
  // Called when the group is on the stream. Returns a function that reports whether the stream has passed the
  // group; that function must not block. If `mark` returns null (a graph is captured), the launch is complete
  // when the group is on the stream.
  std::function<std::function<bool()>()> mark;
  // false: launch() returns before the group is on the stream, so `mark` is called later, by the device's
  // loop. Nothing else is launched meanwhile.
  bool waits = true;
};

class WEFT_EXPORT Communicator final : public Watched, public std::enable_shared_from_this<Communicator> {
 public:
  using Ptr = std::shared_ptr<Communicator>;

  // Call it on one rank, which sends the id to the other ranks. Throws the errors of NCCL. May block.
  static UniqueId unique_id(const Api& api);
  // Call it on all ranks. deadline_exceeded if some do not arrive; cancel() of the future ends the creation.
  static rpc::Future<Ptr> create(Device device, UniqueId id, int size, int rank,
                                 CommunicatorOptions options = {});
  ~Communicator() override;

  // Constant. name(): CommunicatorOptions::name.
  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& name() const { return options_.name; }
  const Device& device() const { return device_; }

  std::optional<rpc::Error> failure() const;  // why the communicator has ended; empty: it has not ended

  // If launch.waits, blocks until the group is on the stream, at most until the deadline. This may take as
  // long as NCCL needs to connect the ranks. Throws the communicator's error if nothing is started. A later
  // failure, including an exception of `group`, ends the communicator, because other ranks have started. It
  // fails the future instead of being thrown, because NCCL may still be running the group.
  rpc::Future<void> launch(Launch launch, const std::function<void(Calls&)>& group);

  // Ends the communicator in order, when all launches are complete; failed_precondition while work is in
  // flight. If some ranks do not close in time, aborts the communicator. Without a limit, the timeout is
  // CommunicatorOptions::timeout.
  rpc::Future<void> close(std::optional<std::chrono::nanoseconds> limit = {});
  // Ends work in flight. Completes when NCCL has released the communicator; deadline_exceeded if a thread
  // does not return from NCCL.
  rpc::Future<void> abort(const std::string& reason);

  bool look(rpc::Clock::time_point now) override;

 private:
  class Making;   // a communicator that NCCL has not completed yet
  class Closing;  // a communicator that is flushed and then destroyed
  struct Flight {
    std::string what;
    rpc::Clock::time_point deadline;
    std::function<bool()> ended;
    std::function<std::function<bool()>()> mark;  // null: the group is on the stream
    std::shared_ptr<const void> keeps;
    void release() {
      ended = nullptr, mark = nullptr, keeps = nullptr;
    }  // releases tensors: outside the lock
    rpc::Promise<void> promise;
  };
  Communicator(Device device, Comm* handle, int size, int rank, CommunicatorOptions options);

  // Calls f with the communicator's handle, while no other thread is inside NCCL with it; may block. false:
  // the communicator has ended, and f was not called.
  bool inside(const std::function<void(Comm*)>& f);
  bool look_within(rpc::Clock::time_point now);  // look(), with the device set
  std::string prefix() const;
  void refuse_if_over() const;
  void put(const Launch& launch, const std::function<void(Calls&)>& group, bool& begun);
  void wait_until_launched(const std::string& what, rpc::Clock::time_point deadline);
  [[noreturn]] void fail_and_throw(const rpc::Error& error);
  void fail(const rpc::Error& error);
  bool end(const rpc::Error& error);  // false: the communicator had ended before
  void start_abort();
  Comm* take();
  void release();  // blocks
  Aborts::Done aborted_here();
  void aborted(Result result, const std::optional<std::string>& why);
  void has_let_go(rpc::Result<void> result);
  void end_flights();

  const Device device_;
  const int size_, rank_;
  const CommunicatorOptions options_;

  // Locked by a thread that is inside NCCL with this communicator: never for long, because the communicator
  // is non-blocking. Guards handle_.
  Entrance inside_;
  Comm* handle_;

  mutable rpc::Mutex mutex_;  // taken after inside_, or alone
  std::optional<rpc::Error> over_ WEFT_GUARDED_BY(mutex_);
  bool busy_ WEFT_GUARDED_BY(mutex_) = false;      // being closed
  bool aborting_ WEFT_GUARDED_BY(mutex_) = false;  // an abort has been requested
  // The result of the abort; empty: the abort has not ended.
  std::optional<rpc::Result<void>> let_go_ WEFT_GUARDED_BY(mutex_);
  std::vector<rpc::Promise<void>> waiting_ WEFT_GUARDED_BY(mutex_);  // for the abort
  std::vector<Flight> flights_ WEFT_GUARDED_BY(mutex_);              // in the order of launches
};

}  // namespace weft::collectives::nccl
