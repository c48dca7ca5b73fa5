// Creation and closing of communicators: NCCL performs them in its own threads, and is polled for their
// completion.
#include <weft/parallel/collectives/nccl/internal/communicator.h>

#include <atomic>

namespace weft::collectives::nccl {

using rpc::Clock;
using rpc::Error;
using rpc::ErrorKind;
using rpc::Future;

struct Communicator::Plan {
  Device device;
  std::string what;  // in errors
  CommunicatorOptions options;
  Begin begin;
  Ptr parent = nullptr;
  bool aborts_parent = false;
  bool may_be_none = false;
};

// The creation is started on the background executor, and polled until NCCL has completed it. A cancel takes
// effect on the background executor too, because the loop may have ended. NCCL may write the handle at any
// time, on its own thread. Therefore a creation that was given up is still polled, to abort a communicator
// that appears late.
class Communicator::Making final : public Watched, public std::enable_shared_from_this<Making> {
 public:
  explicit Making(Plan plan)
      : plan_(std::move(plan)),
        deadline_(rpc::later(plan_.device.watch->loop()->now(), plan_.options.timeout)),
        promise_(plan_.device.watch->loop()) {}

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
    plan_.device.background->post([self = shared_from_this()] { self->begin(); });
    return future;
  }

  bool look(Clock::time_point now) override {
    if (!mutex_.try_lock()) return true;
    rpc::MutexLock lock(mutex_, std::adopt_lock);
    if (over_) return clean_up();
    if (cancelled_) return give_up(cancelled());
    const bool overdue = deadline_ <= now;
    if (!parent_settled_) {
      std::optional<Error> failed;
      parent_settled_ = settle_parent(failed);
      if (failed) return give_up(*failed);
      if (!parent_settled_) return go_on(overdue);
    }
    Comm* const made = slot();
    if (made == nullptr) return plan_.may_be_none ? finish(nullptr) : go_on(overdue);
    Result state = Result::success;
    const Result asked = api().comm_get_async_error(made, &state);
    if (asked != Result::success) state = asked;
    if (state == Result::in_progress) return go_on(overdue);
    if (state != Result::success) return give_up(error_of(api(), state, made, plan_.what));
    int size = 0, rank = 0;
    api().comm_count(made, &size);
    api().comm_user_rank(made, &rank);
    return finish(Ptr(new Communicator(plan_.device, made, size, rank, plan_.options)));
  }

 private:
  const Api& api() const { return *plan_.device.api; }
  Comm* slot() { return std::atomic_ref<Comm*>(*slot_).load(std::memory_order_acquire); }
  std::string text(const std::string& what) const { return "NCCL: " + plan_.what + ": " + what; }

  Error cancelled() const { return Error(ErrorKind::cancelled, text("it was cancelled")); }
  void cancel() {
    cancelled_ = true;
    plan_.device.background->post([self = shared_from_this()] {
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
    if (more) plan_.device.watch->add(shared_from_this());
  }
  std::optional<Error> call() {
    Config config;
    Result result = Result::success;
    std::unique_lock<Entrance> lock;
    if (plan_.parent) lock = std::unique_lock(plan_.parent->inside_);
    Comm* const parent = plan_.parent ? plan_.parent->handle_ : nullptr;
    if (plan_.parent && parent == nullptr) return plan_.parent->failure();
    if (const auto why = plan_.device.try_within([&] { result = plan_.begin(parent, slot_.get(), &config); }))
      return Error(ErrorKind::internal, text(*why));
    if (result != Result::success && result != Result::in_progress)
      return error_of(api(), result, parent, plan_.what);
    return std::nullopt;
  }

  // Whether the parent communicator has completed its part, so that the new one can be queried.
  bool settle_parent(std::optional<Error>& failed) WEFT_REQUIRES(mutex_) {
    Communicator* const parent = plan_.parent.get();
    if (parent == nullptr) return true;
    const std::unique_lock lock(parent->inside_, std::try_to_lock);
    if (!lock) return false;
    failed = parent->failure();
    if (parent->handle_ == nullptr) return false;
    if (plan_.aborts_parent) {
      failed.reset();  // the new communicator is created after that failure
    } else if (failed) {
      return false;
    }
    Result state = Result::success;
    const Result asked = api().comm_get_async_error(parent->handle_, &state);
    if (asked != Result::success) state = asked;
    if (state == Result::in_progress) return false;
    if (state == Result::success || plan_.aborts_parent) return true;
    failed = error_of(api(), state, parent->handle_, plan_.what);
    return false;
  }

  bool go_on(bool overdue) WEFT_REQUIRES(mutex_) {
    if (!overdue) return true;
    return give_up(Error(ErrorKind::deadline_exceeded, text("not all ranks joined in time")));
  }

  bool finish(Ptr made) WEFT_REQUIRES(mutex_) {
    over_ = settled_ = true;
    if (const Ptr parent = std::move(plan_.parent)) {
      if (plan_.aborts_parent) {
        parent->end(Error(ErrorKind::aborted, parent->prefix() + "it was shrunk"));
        parent->start_abort();
      } else {
        rpc::MutexLock lock(parent->mutex_);
        parent->busy_ = false;
      }
    }
    promise_.complete(std::move(made));
    return false;
  }

  // Returns whether to poll again, as look(). The future fails when the partly created communicator has been
  // aborted.
  bool give_up(const Error& error) WEFT_REQUIRES(mutex_) {
    over_ = true;
    why_ = std::make_exception_ptr(error);
    if (const Ptr& parent = plan_.parent) {
      // If NCCL still works on the creation, or its results differ between ranks, the parent cannot be used
      // any more.
      parent->fail(error);
      if (plan_.aborts_parent) parent->start_abort();
      rpc::MutexLock lock(parent->mutex_);
      parent->busy_ = false;
    }
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
    if (plan_.parent != nullptr) {
      rpc::MutexLock lock(plan_.parent->mutex_);
      settled_ = settled_ || plan_.parent->let_go_;
    }
    return !settled_;
  }
  void abort(Comm* made) WEFT_REQUIRES(mutex_) {
    plan_.device.aborts->add(plan_.device, made,
                             [why = why_, promise = std::move(promise_)](auto&&...) mutable {
                               if (promise) promise.fail(why);
                             });
  }

  Plan plan_;
  const Clock::time_point deadline_;
  // NCCL writes the handle here after the creation has started.
  std::unique_ptr<Comm*> slot_ = std::make_unique<Comm*>(nullptr);
  std::atomic<bool> cancelled_{false};

  rpc::Mutex mutex_;
  rpc::Promise<Ptr> promise_ WEFT_GUARDED_BY(mutex_);
  bool begun_ WEFT_GUARDED_BY(mutex_) = false;
  bool parent_settled_ WEFT_GUARDED_BY(mutex_) = false;
  bool over_ WEFT_GUARDED_BY(mutex_) = false;     // it exists, or was given up
  bool settled_ WEFT_GUARDED_BY(mutex_) = false;  // and NCCL will write nothing more that must be aborted
  std::exception_ptr why_ WEFT_GUARDED_BY(mutex_);
};

Future<Communicator::Ptr> Communicator::make(Plan plan) {
  return std::make_shared<Making>(std::move(plan))->start();
}

Future<Communicator::Ptr> Communicator::create(Device device, UniqueId id, int size, int rank,
                                               CommunicatorOptions options) {
  if (size < 1 || rank < 0 || rank >= size)
    throw Error(ErrorKind::invalid_argument,
                "NCCL: create: rank " + std::to_string(rank) + " of " + std::to_string(size) +
                    " ranks, expected at least one rank, and a rank below their number");
  const auto api = device.api;
  std::string what = "making communicator '" + options.name + "', rank " + std::to_string(rank);
  return make({std::move(device), std::move(what), std::move(options),
               [api, id, size, rank](Comm*, Comm** made, Config* config) {
                 return api->comm_init_rank_config(made, size, id, rank, config);
               }});
}

namespace {
void expect_grow(const Api& api) {
  if (!api.can_grow())
    throw Error(ErrorKind::unsupported,
                "NCCL " + api.version_text() + " cannot grow communicators, expected 2.29 or later");
}
}  // namespace

Future<Communicator::Ptr> Communicator::join(Device device, UniqueId grow_id, int size, int rank,
                                             CommunicatorOptions options) {
  expect_grow(*device.api);
  const auto api = device.api;
  std::string what = "joining communicator '" + options.name + "', rank " + std::to_string(rank);
  return make({std::move(device), std::move(what), std::move(options),
               [api, grow_id, size, rank](Comm*, Comm** made, Config* config) {
                 return api->comm_grow(nullptr, size, &grow_id, rank, made, config);
               }});
}

Future<Communicator::Ptr> Communicator::make_of_this(std::string what, bool aborts, bool may_be_none,
                                                     Begin begin, CommunicatorOptions options) {
  {
    rpc::MutexLock lock(mutex_);
    if (over_ && (!aborts || aborting_)) throw Error(*over_);
    if (busy_ || (!aborts && !flights_.empty()))
      throw Error(
          ErrorKind::failed_precondition,
          prefix() + what +
              (busy_ ? ": another operation on the communicator is in progress" : ": work is in flight"));
    busy_ = true;
  }
  return make({device_, prefix() + what, std::move(options), std::move(begin), shared_from_this(), aborts,
               may_be_none});
}

Future<Communicator::Ptr> Communicator::split(int color, int key, CommunicatorOptions options) {
  return make_of_this(
      "split", false, color == no_color,
      [api = device_.api, color, key](Comm* parent, Comm** made, Config* config) {
        return api->comm_split(parent, color, key, made, config);
      },
      std::move(options));
}

Future<Communicator::Ptr> Communicator::shrink(std::vector<int> gone, bool abort,
                                               CommunicatorOptions options) {
  if (!device_.api->can_shrink())
    throw Error(ErrorKind::unsupported, "NCCL " + device_.api->version_text() +
                                            " cannot shrink communicators, expected 2.27 or later");
  for (const int rank : gone)
    if (rank < 0 || rank >= size_ || rank == rank_)
      throw Error(ErrorKind::invalid_argument, prefix() + "shrink: rank " + std::to_string(rank) +
                                                   " cannot be removed, expected one of the other ranks of " +
                                                   std::to_string(size_));
  return make_of_this(
      "shrink", abort, false,
      [api = device_.api, gone = std::move(gone), abort](Comm* parent, Comm** made, Config* config) mutable {
        return api->comm_shrink(parent, gone.data(), static_cast<int>(gone.size()), made, config,
                                abort ? shrink_abort : shrink_default);
      },
      std::move(options));
}

UniqueId Communicator::grow_id() {
  expect_grow(*device_.api);
  UniqueId id;
  std::optional<Error> failed;
  const bool called = inside([&](Comm* comm) {
    if (const Result result = device_.api->comm_get_unique_id(comm, &id); result != Result::success)
      failed = error_of(*device_.api, result, comm, prefix() + "id to grow by");
  });
  if (!called) throw Error(*failure());
  if (failed) throw Error(*failed);
  return id;
}

Future<Communicator::Ptr> Communicator::grow(int size, std::optional<UniqueId> id,
                                             CommunicatorOptions options) {
  expect_grow(*device_.api);
  if (size <= size_)
    throw Error(ErrorKind::invalid_argument, prefix() + "grow: " + std::to_string(size) +
                                                 " ranks, expected more than the communicator's " +
                                                 std::to_string(size_));
  return make_of_this(
      "grow", false, false,
      [api = device_.api, size, id](Comm* parent, Comm** made, Config* config) {
        return api->comm_grow(parent, size, id ? &*id : nullptr, -1, made, config);
      },
      std::move(options));
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
