#include <weft/parallel/collectives/internal/shm/shared_queue.h>

#include <weft/rpc/core/loop.h>

namespace weft::collectives {

SharedQueue::SharedQueue(std::shared_ptr<SharedSpace> space) : space_(std::move(space)) {}

SharedQueue::~SharedQueue() {
  stop();
  {
    rpc::MutexLock lock(state_->mutex);
    state_->ended = true;
    state_->changed.notify_all();
  }
  if (!thread_.joinable()) return;
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();  // this thread has reported an end, and the receiver has released the queue
  } else {
    thread_.join();
  }
}

std::optional<SharedQueue::Outcome> SharedQueue::run_here(const TransferPtr& transfer) {
  {
    rpc::MutexLock lock(state_->mutex);
    if (state_->busy || !state_->entries.empty() || !open_.load()) return std::nullopt;
    state_->busy = true;
    transfer->set_sequence(begun_.fetch_add(1, std::memory_order_relaxed));
  }
  auto outcome = advance(*state_, *transfer, Lockstep::Patience::brief);
  if (outcome.ok() && outcome.value() == SharedTransfer::State::in_progress) return outcome;
  rpc::MutexLock lock(state_->mutex);
  state_->busy = false;
  if (!state_->entries.empty()) wake();
  return outcome;
}

void SharedQueue::continue_async(const TransferPtr& transfer, Done done) {
  rpc::MutexLock lock(state_->mutex);
  state_->entries.push_front({transfer, std::move(done)});
  state_->busy = false;
  wake();
}

void SharedQueue::push(const TransferPtr& transfer, Done done) {
  rpc::MutexLock lock(state_->mutex);
  transfer->set_sequence(begun_.fetch_add(1, std::memory_order_relaxed));
  state_->entries.push_back({transfer, std::move(done)});
  if (!state_->busy) wake();
}

void SharedQueue::stop() {
  disable_inline();
  space_->lockstep().stop();
}

void SharedQueue::wake() {
  if (!thread_.joinable()) thread_ = std::thread([state = state_] { work(state); });
  state_->changed.notify_one();
}

// Once a transfer has failed, no later transfer finds the other ranks at the step that it expects. So the
// first failure stops the space.
SharedQueue::Outcome SharedQueue::advance(State& state, SharedTransfer& transfer,
                                          Lockstep::Patience patience) {
  auto outcome = rpc::capture([&] { return transfer.advance(patience); });
  if (outcome.ok()) return outcome;
  {
    rpc::MutexLock lock(state.mutex);
    if (state.failure == nullptr) state.failure = outcome.error();
  }
  transfer.stop();
  return outcome;
}

std::exception_ptr SharedQueue::failure() const {
  rpc::MutexLock lock(state_->mutex);
  return state_->failure;
}

void SharedQueue::work(const std::shared_ptr<State>& state) {
  const rpc::OwnedThread mark;
  rpc::MutexLock lock(state->mutex);
  while (true) {
    state->changed.wait(lock, [&]() WEFT_REQUIRES(state->mutex) {
      return state->ended || (!state->busy && !state->entries.empty());
    });
    if (state->entries.empty()) return;
    Entry entry = std::move(state->entries.front());
    state->entries.pop_front();
    state->busy = true;
    lock.unlock();
    auto outcome = advance(*state, *entry.transfer, Lockstep::Patience::endless);
    lock.lock();
    state->busy = false;
    lock.unlock();
    entry.done(std::move(outcome));
    entry = {};
    lock.lock();
  }
}

}  // namespace weft::collectives
