// Jobs are pushed onto a lock-free stack (`posted`). The push onto an idle executor posts a Runner to the
// other executor. The Runner runs one job and posts itself again. When its list is empty, take() takes the
// whole stack and reverses it, so that jobs run in order.
#include <weft/rpc/core/serial_executor.h>

#include <atomic>
#include <utility>

namespace weft::rpc {

struct SerialExecutor::State {
  struct Node {
    Node* next = nullptr;
  };
  struct Queued : Node {
    explicit Queued(Callback j) : job(std::move(j)) {}
    Callback job;
  };

  explicit State(Executor& t) : threads(t) {}

  // The jobs that were posted during the last turns, in their order. null: no jobs, and the executor is idle
  // from now on.
  Node* take() {
    Node* newest = &end;
    if (posted.compare_exchange_strong(newest, nullptr, std::memory_order_acq_rel)) return nullptr;
    newest = posted.exchange(&end, std::memory_order_acq_rel);
    Node* first = nullptr;
    while (newest != &end) {
      Node* const older = std::exchange(newest->next, first);
      first = std::exchange(newest, older);
    }
    return first;
  }

  static void drop(Node* first, const Node* last) {
    while (first != last) delete static_cast<Queued*>(std::exchange(first, first->next));
  }

  Executor& threads;
  // null: idle. Otherwise a runner exists, and these jobs were posted after the last take() of the runner.
  // The newest job is the first, and the oldest points to `end`.
  std::atomic<Node*> posted{nullptr};
  Node end;
};

class SerialExecutor::Runner {
 public:
  Runner(std::shared_ptr<State> state, State::Node* jobs) : state_(std::move(state)), jobs_(jobs) {}
  Runner(Runner&& other) noexcept
      : state_(std::move(other.state_)), jobs_(std::exchange(other.jobs_, nullptr)) {}
  Runner& operator=(Runner&&) = delete;
  ~Runner() {
    if (state_ == nullptr) return;
    // The other executor has dropped this runner: drop the jobs, too. They may own the last reference to this
    // executor.
    State::Node* const posted = state_->posted.exchange(nullptr, std::memory_order_acq_rel);
    State::drop(jobs_, nullptr);
    State::drop(posted, &state_->end);
  }

  void operator()() {
    run(std::unique_ptr<State::Queued>(static_cast<State::Queued*>(std::exchange(jobs_, jobs_->next))));
    if (jobs_ == nullptr) jobs_ = state_->take();
    if (jobs_ == nullptr) {
      state_ = nullptr;
      return;
    }
    // A runner runs one job, so that many objects share few threads fairly.
    Executor& threads = state_->threads;
    threads.post(std::move(*this));
  }

 private:
  static void run(std::unique_ptr<State::Queued> queued) { queued->job(); }

  std::shared_ptr<State> state_;
  State::Node* jobs_;  // the jobs of this runner and of the runners after it
};

SerialExecutor::SerialExecutor(Executor& threads) : state_(std::make_shared<State>(threads)) {}

std::shared_ptr<ExceptionSink> SerialExecutor::exceptions() const { return state_->threads.exceptions(); }

void SerialExecutor::post(Callback job) {
  auto queued = std::make_unique<State::Queued>(std::move(job));
  State::Node* newest = state_->posted.load(std::memory_order_relaxed);
  do {
    queued->next = newest;
  } while (!state_->posted.compare_exchange_weak(newest, newest == nullptr ? &state_->end : queued.get(),
                                                 std::memory_order_acq_rel, std::memory_order_relaxed));
  State::Node* const mine = queued.release();
  if (newest == nullptr) state_->threads.post(Runner(state_, mine));
  // NOLINTNEXTLINE(clang-analyzer-cplusplus.NewDeleteLeaks): the runner that runs the job owns it.
}

}  // namespace weft::rpc
