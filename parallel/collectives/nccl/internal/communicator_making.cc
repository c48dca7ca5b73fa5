// Creation and closing of communicators: NCCL performs them in its own threads, and is polled for their
// completion.
#include <weft/parallel/collectives/nccl/internal/communicator.h>

#include <atomic>

namespace weft::collectives::nccl {

using rpc::Clock;
using rpc::Error;
using rpc::ErrorKind;
using rpc::Future;

// The creation is started on the background executor, and polled until NCCL has completed it. A cancel takes
// effect on the background executor too, because the loop may have ended. NCCL may write the handle at any
// time, on its own thread. Therefore a creation that was given up is still polled, to abort a communicator
// that appears late.
class Communicator::Making final : public Watched, public std::enable_shared_from_this<Making> {
 public:
  Making(Device device, UniqueId id, int size, int rank, CommunicatorOptions options)
      : device_(std::move(device)),
        id_(id),
        size_(size),
        rank_(rank),
        options_(std::move(options)),
        deadline_(rpc::later(device_.watch->loop()->now(), options_.timeout)),
        promise_(device_.watch->loop()) {}

  ~Making() override {
    if (!begun_ || settled_) return;
    // The loop has ended before NCCL completed the creation, so nothing polls it any more.
    if (why_ == nullptr)
      why_ = std::make_exception_ptr(Error(ErrorKind::aborted, text("its loop has ended")));
    if (Comm* const made = slot(); made != nullptr) {
      abort(made);
    } else {
      (void)slot_.release();  // NCCL may still write it
    }
  }

  Future<Ptr> start() {
    Future<Ptr> future;
    {
      rpc::MutexLock lock(mutex_);
      future = promise_.future();
      promise_.on_cancel([weak = weak_from_this()] {
        if (const auto self = weak.lock()) self->cancel();
      });
    }
    device_.background->post([self = shared_from_this()] { self->begin(); });
    return future;
  }

  bool look(Clock::time_point now) override {
    if (!mutex_.try_lock()) return true;
    rpc::MutexLock lock(mutex_, std::adopt_lock);
    if (over_) return clean_up();
    if (cancelled_) return give_up(cancelled());
    const bool overdue = deadline_ <= now;
    Comm* const made = slot();
    if (made == nullptr) return try_later(overdue);
    Result state = Result::success;
    const Result asked = api().comm_get_async_error(made, &state);
    if (asked != Result::success) state = asked;
    if (state == Result::in_progress) return try_later(overdue);
    if (state != Result::success) return give_up(error_of(api(), state, made, what()));
    over_ = settled_ = true;
    promise_.complete(Ptr(new Communicator(device_, made, size_, rank_, options_)));
    return false;
  }

 private:
  const Api& api() const { return *device_.api; }
  Comm* slot() { return std::atomic_ref<Comm*>(*slot_).load(std::memory_order_acquire); }
  std::string what() const {
    return "making communicator '" + options_.name + "', rank " + std::to_string(rank_);
  }
  std::string text(const std::string& why) const { return "NCCL: " + what() + ": " + why; }

  Error cancelled() const { return Error(ErrorKind::cancelled, text("it was cancelled")); }
  void cancel() {
    cancelled_ = true;
    device_.background->post([self = shared_from_this()] {
      rpc::MutexLock lock(self->mutex_);
      if (self->begun_ && !self->over_) self->give_up(self->cancelled());  // otherwise begin() does
    });
  }

  void begin() {
    std::optional<Error> failed = cancelled_ ? cancelled() : call();
    bool more = true;
    {
      rpc::MutexLock lock(mutex_);
      begun_ = !failed;
      if (!failed && cancelled_) failed = cancelled();
      if (failed) more = give_up(*failed);
    }
    if (more) device_.watch->add(shared_from_this());
  }
  std::optional<Error> call() {
    Config config;
    Result result = Result::success;
    if (const auto why = device_.try_within(
            [&] { result = api().comm_init_rank_config(slot_.get(), size_, id_, rank_, &config); }))
      return Error(ErrorKind::internal, text(*why));
    if (result != Result::success && result != Result::in_progress)
      return error_of(api(), result, nullptr, what());
    return std::nullopt;
  }

  bool try_later(bool overdue) WEFT_REQUIRES(mutex_) {
    if (!overdue) return true;
    return give_up(Error(ErrorKind::deadline_exceeded, text("not all ranks joined in time")));
  }

  // Returns whether to poll again, as look(). The future fails when the partly created communicator has been
  // aborted.
  bool give_up(const Error& error) WEFT_REQUIRES(mutex_) {
    over_ = true;
    why_ = std::make_exception_ptr(error);
    return clean_up();
  }

  // Aborts the partly created communicator. Returns true if NCCL may still write the handle.
  bool clean_up() WEFT_REQUIRES(mutex_) {
    if (settled_) return false;
    if (Comm* const made = slot(); made != nullptr) {
      settled_ = true;
      abort(made);
      return false;
    }
    if (promise_) promise_.fail(why_);
    settled_ = !begun_;
    return begun_;
  }
  void abort(Comm* made) WEFT_REQUIRES(mutex_) {
    device_.aborts->add(device_, made, [why = why_, promise = std::move(promise_)](auto&&...) mutable {
      if (promise) promise.fail(why);
    });
  }

  const Device device_;
  const UniqueId id_;
  const int size_, rank_;
  const CommunicatorOptions options_;
  const Clock::time_point deadline_;
  // NCCL writes the handle here after the creation has started.
  std::unique_ptr<Comm*> slot_ = std::make_unique<Comm*>(nullptr);
  std::atomic<bool> cancelled_{false};

  rpc::Mutex mutex_;
  rpc::Promise<Ptr> promise_ WEFT_GUARDED_BY(mutex_);
  bool begun_ WEFT_GUARDED_BY(mutex_) = false;
  bool over_ WEFT_GUARDED_BY(mutex_) = false;     // it exists, or was given up
  bool settled_ WEFT_GUARDED_BY(mutex_) = false;  // and NCCL will write nothing more that must be aborted
  std::exception_ptr why_ WEFT_GUARDED_BY(mutex_);
};

Future<Communicator::Ptr> Communicator::create(Device device, UniqueId id, int size, int rank,
                                               CommunicatorOptions options) {
  if (size < 1 || rank < 0 || rank >= size)
    throw Error(ErrorKind::invalid_argument,
                "NCCL: create: rank " + std::to_string(rank) + " of " + std::to_string(size) +
                    " ranks, expected at least one rank, and a rank below their number");
  return std::make_shared<Making>(std::move(device), id, size, rank, std::move(options))->start();
}

// --- Closing ---

class Communicator::Closing final : public Watched, public std::enable_shared_from_this<Closing> {
 public:
  Closing(Ptr comm, std::chrono::nanoseconds limit)
      : comm_(std::move(comm)),
        deadline_(rpc::later(comm_->device_.watch->loop()->now(), limit)),
        promise_(comm_->device_.watch->loop()) {}

  Future<void> start() {
    Future<void> future = promise_.future();
    comm_->device_.background->post([self = shared_from_this()] { self->begin(); });
    return future;
  }

  bool look(Clock::time_point now) override {
    Result state = Result::in_progress;
    std::optional<Error> failed = comm_->failure();
    if (std::unique_lock lock(comm_->inside_, std::try_to_lock); lock && !failed) {
      const Result asked = api().comm_get_async_error(comm_->handle_, &state);
      if (asked != Result::success) state = asked;
      if (state != Result::success && state != Result::in_progress)
        failed = error_of(api(), state, comm_->handle_, comm_->prefix() + "close");
    }
    if (!failed && state == Result::in_progress && deadline_ <= now)
      failed =
          Error(ErrorKind::deadline_exceeded, comm_->prefix() + "close: not all ranks called it in time");
    if (failed) return give_up(*failed);
    if (state == Result::in_progress) return true;
    comm_->device_.background->post([self = shared_from_this()] { self->destroy(); });
    return false;
  }

 private:
  const Api& api() const { return *comm_->device_.api; }

  void begin() {
    Result result = Result::success;
    std::optional<Error> failed;
    try {
      const bool called = comm_->inside([&](Comm* handle) {
        result = api().comm_finalize(handle);
        if (result != Result::success && result != Result::in_progress)
          failed = error_of(api(), result, handle, comm_->prefix() + "close");
      });
      if (!called) failed = comm_->failure();
    } catch (const std::exception& error) {  // the device cannot be used
      failed = Error(ErrorKind::internal, comm_->prefix() + "close: " + error.what());
    }
    if (failed) {
      give_up(*failed);
    } else {
      comm_->device_.watch->add(shared_from_this());
    }
  }

  void destroy() {
    Result result = Result::success;
    std::optional<Error> failed;
    std::optional<std::string> why;
    {
      std::lock_guard lock(comm_->inside_);
      if (!comm_->end(Error(ErrorKind::failed_precondition, comm_->prefix() + "it is closed"))) {
        failed = comm_->failure();
      } else {
        Comm* const handle = std::exchange(comm_->handle_, nullptr);
        why = comm_->device_.try_within([&] { result = api().comm_destroy(handle); });
      }
    }
    if (failed) return promise_.fail(std::make_exception_ptr(*failed));
    std::vector<rpc::Promise<void>> waiting;
    {
      rpc::MutexLock lock(comm_->mutex_);
      comm_->let_go_ = rpc::Result<void>{};
      comm_->aborting_ = true;  // nothing remains to be aborted
      waiting.swap(comm_->waiting_);
    }
    comm_->end_flights();  // of a launch that started at the same time
    for (rpc::Promise<void>& one : waiting) one.complete({});
    if (why) return promise_.fail(Error(ErrorKind::internal, comm_->prefix() + "close: " + *why));
    if (result != Result::success)
      return promise_.fail(
          std::make_exception_ptr(error_of(api(), result, nullptr, comm_->prefix() + "close")));
    promise_.complete({});
  }

  bool give_up(const Error& error) {
    comm_->fail(error);
    promise_.fail(std::make_exception_ptr(*comm_->failure()));
    return false;
  }

  const Ptr comm_;
  const Clock::time_point deadline_;
  rpc::Promise<void> promise_;
};

Future<void> Communicator::close(std::optional<std::chrono::nanoseconds> limit) {
  {
    rpc::MutexLock lock(mutex_);
    if (over_) throw Error(*over_);
    if (busy_ || !flights_.empty())
      throw Error(ErrorKind::failed_precondition,
                  prefix() + (busy_ ? "close: another operation on the communicator is in progress"
                                    : "close: work is in flight"));
    busy_ = true;
  }
  return std::make_shared<Closing>(shared_from_this(), limit.value_or(options_.timeout))->start();
}

}  // namespace weft::collectives::nccl
