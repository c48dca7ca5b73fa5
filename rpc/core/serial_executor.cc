#include <weft/rpc/core/serial_executor.h>

namespace weft::rpc {

class SerialExecutor::Turn {
 public:
  explicit Turn(std::shared_ptr<State> state) : state_(std::move(state)) {}
  Turn(Turn&&) noexcept = default;
  Turn& operator=(Turn&&) = delete;
  ~Turn() {
    if (state_ == nullptr) return;
    // Dropped: the jobs go too. They may hold the last reference to this executor.
    Fifo<Job> jobs;
    std::lock_guard lock(state_->mutex);
    std::swap(jobs, state_->jobs);
    state_->running = false;
  }

  void operator()() {
    auto state = std::move(state_);
    Job job;
    {
      std::lock_guard lock(state->mutex);
      job = state->jobs.pop();
    }
    job();
    job = nullptr;
    {
      std::lock_guard lock(state->mutex);
      if (state->jobs.empty()) {
        state->running = false;
        return;
      }
    }
    // One job a turn, so that many objects share few threads fairly.
    Executor& threads = state->threads;
    threads.post(Turn(std::move(state)));
  }

 private:
  std::shared_ptr<State> state_;
};

void SerialExecutor::post(Job job) {
  {
    std::lock_guard lock(state_->mutex);
    state_->jobs.push(std::move(job));
    if (state_->running) return;
    state_->running = true;
  }
  state_->threads.post(Turn(state_));
}

}  // namespace weft::rpc
