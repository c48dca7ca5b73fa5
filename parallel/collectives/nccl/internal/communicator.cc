#include <weft/parallel/collectives/nccl/internal/communicator.h>

#include <algorithm>
#include <thread>

namespace weft::collectives::nccl {

using rpc::Clock;
using rpc::Error;
using rpc::ErrorKind;
using rpc::Future;

// --- Calls ---

void Calls::check(Result result) const {
  if (result != Result::success && result != Result::in_progress) throw error_of(api_, result, comm_, what_);
}

void Calls::all_reduce(const void* in, void* out, std::size_t count, DataType type, RedOp op) {
  check(api_.all_reduce(in, out, count, type, op, comm_, stream_));
}
void Calls::reduce(const void* in, void* out, std::size_t count, DataType type, RedOp op, int root) {
  check(api_.reduce(in, out, count, type, op, root, comm_, stream_));
}
void Calls::broadcast(const void* in, void* out, std::size_t count, DataType type, int root) {
  check(api_.broadcast(in, out, count, type, root, comm_, stream_));
}
void Calls::all_gather(const void* in, void* out, std::size_t count, DataType type) {
  check(api_.all_gather(in, out, count, type, comm_, stream_));
}
void Calls::reduce_scatter(const void* in, void* out, std::size_t count, DataType type, RedOp op) {
  check(api_.reduce_scatter(in, out, count, type, op, comm_, stream_));
}
void Calls::send(const void* in, std::size_t count, DataType type, int to) {
  check(api_.send(in, count, type, to, comm_, stream_));
}
void Calls::recv(void* out, std::size_t count, DataType type, int from) {
  check(api_.recv(out, count, type, from, comm_, stream_));
}

RedOp Calls::premul_sum(const void* factor, DataType type) {
  RedOp op{};
  check(
      api_.red_op_create_premul_sum(&op, const_cast<void*>(factor), type, Residence::host_immediate, comm_));
  ops_.push_back(op);
  return op;
}

void Calls::destroy_ops() {
  for (const RedOp op : std::exchange(ops_, {})) api_.red_op_destroy(op, comm_);
}

// --- Communicator ---

UniqueId Communicator::unique_id(const Api& api) {
  UniqueId id;
  if (const Result result = api.get_unique_id(&id); result != Result::success)
    throw error_of(api, result, nullptr, "unique id");
  return id;
}

Communicator::Communicator(Device device, Comm* handle, int size, int rank, CommunicatorOptions options)
    : device_(std::move(device)), size_(size), rank_(rank), options_(std::move(options)), handle_(handle) {}

Communicator::~Communicator() {
  // No operation is in flight, because an operation would keep the communicator alive.
  if (handle_ == nullptr) return;
  device_.aborts->add(device_, handle_);
}

std::string Communicator::prefix() const {
  return "communicator '" + options_.name + "', rank " + std::to_string(rank_) + ": ";
}

std::optional<Error> Communicator::failure() const {
  rpc::MutexLock lock(mutex_);
  return over_;
}

void Communicator::refuse_if_over() const {
  rpc::MutexLock lock(mutex_);
  if (over_) throw Error(*over_);
  if (busy_) throw Error(ErrorKind::failed_precondition, prefix() + "a close is in progress");
}

// --- Launching ---

Future<void> Communicator::launch(Launch launch, const std::function<void(Calls&)>& group) {
  const std::chrono::nanoseconds timeout = launch.timeout.value_or(options_.timeout);
  const Clock::time_point deadline = rpc::later(Clock::now(), timeout);
  LaunchTurn turn = launch.turn ? std::move(launch.turn) : device_.order->reserve();
  refuse_if_over();
  turn.wait(deadline);

  bool begun = false;
  std::function<bool()> ended;
  try {
    put(launch, group, begun);
    if (launch.waits) wait_until_launched(launch.what, deadline);
    try {
      if (launch.waits && launch.mark) device_.run_within([&] { ended = launch.mark(); });
    } catch (const std::exception& error) {  // it is on the stream, but its end could not be detected
      fail_and_throw(Error(ErrorKind::internal, prefix() + launch.what + ": " + error.what()));
    }
    if (launch.waits && ended == nullptr) return Future<void>::made({});
  } catch (const Error&) {
    if (!begun) throw;
    ended = [] { return false; };  // only the end of the communicator, which has this error, completes it
  }
  rpc::Promise<void> promise(device_.watch->loop());
  Future<void> future = promise.future();
  {
    rpc::MutexLock lock(mutex_);
    flights_.push_back({std::move(launch.what), rpc::later(device_.watch->loop()->now(), timeout),
                        std::move(ended), launch.waits ? nullptr : std::move(launch.mark),
                        std::move(launch.keeps), std::move(promise)});
    if (!let_go_) {
      device_.watch->add(shared_from_this());
      return future;
    }
  }
  end_flights();  // it was aborted meanwhile
  return future;
}

void Communicator::put(const Launch& launch, const std::function<void(Calls&)>& group, bool& begun) {
  const Api& api = *device_.api;
  std::lock_guard lock(inside_);
  refuse_if_over();  // before anything is started; meanwhile an abort waits for this thread
  Calls calls(api, handle_, launch.stream, launch.what);
  std::optional<Error> failed;
  std::exception_ptr thrown;
  Result result = Result::success;
  device_.run_within([&] {
    begun = true;
    api.group_start();
    try {
      group(calls);
    } catch (...) {
      thrown = std::current_exception();
    }
    result = api.group_end();  // also after an error: the group belongs to the thread
    calls.destroy_ops();
  });
  if (thrown != nullptr) {
    try {
      std::rethrow_exception(thrown);
    } catch (const Error& error) {
      failed = Error(error.kind(), prefix() + error.what());
    } catch (const std::exception& error) {
      failed = Error(ErrorKind::aborted, prefix() + launch.what + ": " + error.what());
    }
  } else if (result != Result::success && result != Result::in_progress) {
    const Error error = error_of(api, result, handle_, launch.what);
    failed = Error(error.kind(), prefix() + error.what());
  }
  if (failed) fail_and_throw(*failed);
}

// Operations must start on the device in the order of their launches. Therefore the next launch waits until
// NCCL has put this one on the device. NCCL does this on another thread, which takes some 10 µs once the
// ranks are connected. So the poll yields before it sleeps: a sleep takes 50 µs more than requested.
void Communicator::wait_until_launched(const std::string& what, Clock::time_point deadline) {
  constexpr std::chrono::microseconds launches_within{200};
  const Clock::time_point sleeps_from = Clock::now() + launches_within;
  std::chrono::nanoseconds pause = std::chrono::microseconds{20};
  for (;;) {
    Result state = Result::success;
    {
      std::unique_lock lock(inside_);
      if (const auto over = failure()) throw Error(*over);
      Result asked = device_.api->comm_get_async_error(handle_, &state);
      if (asked != Result::success) state = asked;
      if (state == Result::success) return;
      if (state != Result::in_progress) {
        const Error error = error_of(*device_.api, state, handle_, what);
        lock.unlock();
        fail_and_throw(Error(error.kind(), prefix() + error.what()));
      }
    }
    const Clock::time_point now = Clock::now();
    if (now >= deadline)
      fail_and_throw(Error(ErrorKind::deadline_exceeded, prefix() + what + " could not be launched in time"));
    if (now < sleeps_from) {
      std::this_thread::yield();
      continue;
    }
    std::this_thread::sleep_for(pause);
    pause = std::min<std::chrono::nanoseconds>(2 * pause, std::chrono::milliseconds{1});
  }
}

// --- Work in flight ---

// Events are queried, and tensors released, with the device as the current one. Otherwise CUDA would open
// device 0.
bool Communicator::look(Clock::time_point now) {
  bool more = false;
  if (const auto why = device_.try_within([&] { more = look_within(now); }))
    fail(Error(ErrorKind::internal, prefix() + *why));
  return more;
}

bool Communicator::look_within(Clock::time_point now) {
  std::optional<Error> failed;
  bool launched = false;  // NCCL has put all on the stream
  if (std::unique_lock lock(inside_, std::try_to_lock); lock && handle_ != nullptr && !failure()) {
    Result state = Result::success;
    const Result asked = device_.api->comm_get_async_error(handle_, &state);
    if (asked != Result::success) state = asked;
    launched = state == Result::success;
    if (state != Result::success && state != Result::in_progress) {
      std::string what = "in flight";
      if (rpc::MutexLock flights(mutex_); !flights_.empty()) what = flights_.front().what;
      const Error error = error_of(*device_.api, state, handle_, what);
      failed = Error(error.kind(), prefix() + error.what());
    }
  }

  std::vector<Flight> done;
  bool more = false;
  {
    rpc::MutexLock lock(mutex_);
    for (auto flight = flights_.begin(); flight != flights_.end();) {
      bool ended = false;
      try {
        if (launched && flight->mark) flight->ended = std::exchange(flight->mark, nullptr)();
        ended = !over_ && !failed && flight->ended && flight->ended();
      } catch (const std::exception& error) {
        failed = Error(ErrorKind::internal, prefix() + flight->what + ": " + error.what());
      }
      if (ended) {
        done.push_back(std::move(*flight));
        flight = flights_.erase(flight);
        continue;
      }
      if (!failed && !over_ && flight->deadline <= now)
        failed = Error(ErrorKind::deadline_exceeded, prefix() + flight->what + " did not complete in time");
      ++flight;
    }
    more = !flights_.empty() && !over_;
  }
  for (Flight& flight : done) {
    flight.release();
    flight.promise.complete({});
  }
  if (failed) fail(*failed);
  return more && !failed;
}

void Communicator::end_flights() {
  std::vector<Flight> flights;
  std::exception_ptr why;
  {
    rpc::MutexLock lock(mutex_);
    flights.swap(flights_);
    why = std::make_exception_ptr(*over_);
  }
  (void)device_.try_within([&] {
    for (Flight& flight : flights) flight.release();
  });
  for (Flight& flight : flights) flight.promise.fail(why);
}

// --- Failure and abort ---

bool Communicator::end(const Error& error) {
  rpc::MutexLock lock(mutex_);
  if (over_) return false;
  over_ = error;
  return true;
}

void Communicator::fail(const Error& error) {
  if (!end(error)) return;
  if (options_.on_failure) options_.on_failure(error);
  start_abort();
}

void Communicator::fail_and_throw(const Error& error) {
  fail(error);
  throw Error(*failure());  // the first one
}

void Communicator::start_abort() {
  {
    rpc::MutexLock lock(mutex_);
    if (std::exchange(aborting_, true)) return;
  }
  device_.aborts->add(device_, [self = shared_from_this()] { return self->take(); }, aborted_here());
}

// Returns null if a thread is inside NCCL (then release() waits for it), or if there is nothing to abort. A
// poll is inside NCCL for some µs only; it must not keep the communicator out of the group of aborts.
Comm* Communicator::take() {
  constexpr std::chrono::milliseconds longer_than_a_poll{100};
  std::unique_lock lock(inside_, longer_than_a_poll);
  if (!lock) {
    device_.background->post([self = shared_from_this()] { self->release(); });
    return nullptr;
  }
  Comm* const handle = std::exchange(handle_, nullptr);
  lock.unlock();
  if (handle == nullptr) has_let_go({});
  return handle;
}

void Communicator::release() {
  std::unique_lock lock(inside_, options_.abort_timeout);
  if (!lock)  // an abort now would be undefined behaviour: its resources are lost, and the thread with them
    return has_let_go(std::make_exception_ptr(Error(
        ErrorKind::deadline_exceeded, prefix() + "not aborted, because a thread is still inside NCCL")));
  Comm* const handle = std::exchange(handle_, nullptr);
  lock.unlock();
  if (handle == nullptr) return has_let_go({});
  device_.aborts->add(device_, handle, aborted_here());
}

Aborts::Done Communicator::aborted_here() {
  return [self = shared_from_this()](Result result, const std::optional<std::string>& why) {
    self->aborted(result, why);
  };
}

void Communicator::aborted(Result aborted, const std::optional<std::string>& why) {
  rpc::Result<void> result;
  if (why)
    result = std::make_exception_ptr(Error(ErrorKind::internal, prefix() + "not aborted: " + *why));
  else if (aborted != Result::success && aborted != Result::in_progress)
    result = std::make_exception_ptr(
        Error(kind_of(aborted), prefix() + "NCCL's abort: " + device_.api->get_error_string(aborted)));
  has_let_go(std::move(result));
}

void Communicator::has_let_go(rpc::Result<void> result) {
  std::vector<rpc::Promise<void>> waiting;
  {
    rpc::MutexLock lock(mutex_);
    let_go_ = result;
    waiting.swap(waiting_);
  }
  end_flights();
  for (rpc::Promise<void>& promise : waiting) promise.complete(result);
}

Future<void> Communicator::abort(const std::string& reason) {
  end(Error(ErrorKind::aborted, prefix() + reason));
  rpc::Promise<void> promise(device_.watch->loop());
  Future<void> future = promise.future();
  std::optional<rpc::Result<void>> result;
  {
    rpc::MutexLock lock(mutex_);
    if (let_go_) {
      result = let_go_;
    } else {
      waiting_.push_back(std::move(promise));
    }
  }
  if (result) {
    promise.complete(std::move(*result));
  } else {
    start_abort();
  }
  return future;
}

bool Communicator::inside(const std::function<void(Comm*)>& f) {
  std::lock_guard lock(inside_);
  if (handle_ == nullptr || failure()) return false;
  device_.run_within([&] { f(handle_); });
  return true;
}

}  // namespace weft::collectives::nccl
