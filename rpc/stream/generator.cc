// The generator runs in steps: run() resumes the coroutine, which stops at a co_yield (its item completes the
// next()), at an awaited future or task (wake() posts the next step), or at its end. Every suspension has a
// number, so that a wake-up or a posted step of an earlier suspension has no effect.
//
// After the coroutine has suspended in wait(), another thread may resume it at once; so run() must not access
// it then, and learns the kind of the suspension from `step` on its own stack.
#include <weft/rpc/stream/generator.h>

namespace weft::rpc::detail {
namespace {

constexpr int max_in_a_turn = 64;  // items that a generator yields before other jobs of the executor run

}  // namespace

// The job that resumes the coroutine after the suspension with this number, or destroys it if the number is
// 0. If the executor drops the job, the stream ends.
class GeneratorCore::Job {
 public:
  Job(std::shared_ptr<GeneratorCore> core, std::uint64_t number) : core_(std::move(core)), number_(number) {}
  Job(Job&&) noexcept = default;
  Job& operator=(Job&&) = delete;
  ~Job() {
    if (core_ != nullptr) number_ != 0 ? core_->drop(number_) : core_->destroy(false);
  }
  void operator()() {
    const auto core = std::exchange(core_, nullptr);
    number_ != 0 ? core->run(number_) : core->destroy(true);
  }

 private:
  std::shared_ptr<GeneratorCore> core_;
  std::uint64_t number_;
};

GeneratorCore::~GeneratorCore() {
  if (coroutine_) coroutine_.destroy();
}

void GeneratorCore::bind_home(const StreamHome& home) {
  MutexLock lock(mutex_);
  if (home_.executor == nullptr) home_ = home;
}

std::exception_ptr GeneratorCore::why_over() const {
  if (error_ != nullptr || !closed_) return error_;
  return stream_closed();
}

void GeneratorCore::ask() {
  std::shared_ptr<Executor> executor;
  std::uint64_t number = 0;
  {
    MutexLock lock(mutex_);
    if (state_ != State::idle || closed_) return;
    state_ = State::queued;
    began_ = true;
    number = ++number_;
    if (delivering_) return;  // run() continues
    executor = home_.executor;
  }
  executor->post(Job(shared_from_this(), number));
}

void GeneratorCore::run(std::uint64_t number) {
  for (int count = 1;; ++count) {
    bool dead = false;
    Step step = Step::waits;
    {
      MutexLock lock(mutex_);
      if (state_ != State::queued || number_ != number) return;  // the stream was closed
      dead = closed_;
      state_ = dead ? State::over : State::running;
      step_ = &step;
    }
    if (dead) return destroy(true);
    if (context() != nullptr) context()->enter();
    coroutine_.resume();
    if (step == Step::waits) return;  // it may run on another thread by now
    if (step == Step::dead) return destroy(true);
    std::exception_ptr error;
    {
      MutexLock lock(mutex_);
      dead = closed_ || step == Step::ended;
      state_ = dead ? State::over : State::idle;
      delivering_ = !dead;
      error = error_;
    }
    if (dead) {
      destroy(true);
      return complete_end(error);
    }
    complete_item();
    std::shared_ptr<Executor> executor;
    {
      MutexLock lock(mutex_);
      delivering_ = false;
      if (state_ != State::queued) return;
      number = number_;
      if (count == max_in_a_turn) executor = home_.executor;
    }
    if (executor != nullptr) return executor->post(Job(shared_from_this(), number));
  }
}

void GeneratorCore::suspend(Step step) {
  *step_ = step;
  if (context() != nullptr) context()->leave();
}

std::uint64_t GeneratorCore::wait(State kind) {
  suspend(Step::waits);
  MutexLock lock(mutex_);
  if (closed_) {
    *step_ = Step::dead;
    state_ = State::over;
    return 0;
  }
  state_ = kind;
  return ++number_;
}

void GeneratorCore::ended(std::exception_ptr error) {
  {
    MutexLock lock(mutex_);
    error_ = std::move(error);
  }
  suspend(Step::ended);
}

void GeneratorCore::wake(std::uint64_t number) {
  std::shared_ptr<Executor> executor;
  {
    MutexLock lock(mutex_);
    if ((state_ != State::awaiting && state_ != State::busy) || number_ != number) return;
    state_ = State::queued;
    executor = home_.executor;
  }
  executor->post(Job(shared_from_this(), number));
}

void GeneratorCore::close_coroutine() {
  StreamHome home;
  bool destroy_here = false, destroy_there = false;
  {
    MutexLock lock(mutex_);
    if (std::exchange(closed_, true) || state_ == State::over) return;
    home = home_;
    if (state_ == State::idle || state_ == State::queued || state_ == State::awaiting) {
      destroy_here = !began_;
      destroy_there = began_;
      state_ = State::over;
    }
  }
  // Cancels what the coroutine awaits within its call, unless other generators of the call exist.
  if (home.call != nullptr && home.among.use_count() <= 2) home.call->cancel();
  if (destroy_here) destroy(false);
  if (destroy_there) home.executor->post(Job(shared_from_this(), 0));
  complete_end(stream_closed());
}

void GeneratorCore::drop(std::uint64_t number) {
  const auto ended = stream_error(ErrorKind::shut_down, "the executor of this stream's generator has ended");
  {
    MutexLock lock(mutex_);
    if (state_ != State::queued || number_ != number) return;
    state_ = State::over;
    error_ = ended;
  }
  destroy(false);
  complete_end(ended);
}

void GeneratorCore::destroy(bool here) {
  {
    const ContextScope scope(here ? context() : nullptr);
    std::exchange(coroutine_, nullptr).destroy();
  }
  // The executor stays: late jobs may still be queued there.
  std::shared_ptr<IncomingCall> call;  // destroyed after the lock is released
  MutexLock lock(mutex_);
  call.swap(home_.call);
  home_.among = nullptr;
}

}  // namespace weft::rpc::detail
