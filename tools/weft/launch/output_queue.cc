#include "tools/weft/launch/output_queue.h"

#include <weft/rpc/core/mutex.h>

#include <signal.h>

#include <deque>
#include <string>
#include <utility>

#include "tools/weft/launch/output.h"

namespace weft::tool::launch {

struct OutputQueue::State {
  struct Piece {
    int file;
    std::string text;
  };

  mutable rpc::Mutex mutex;
  mutable rpc::Condition changes;
  std::function<void()> changed WEFT_GUARDED_BY(mutex);
  std::deque<Piece> pieces WEFT_GUARDED_BY(mutex);
  std::size_t bytes WEFT_GUARDED_BY(mutex) = 0;  // including the piece that is being written
  bool full WEFT_GUARDED_BY(mutex) = false;
  bool writing WEFT_GUARDED_BY(mutex) = false;
  bool closed WEFT_GUARDED_BY(mutex) = false;
  bool ending WEFT_GUARDED_BY(mutex) = false;

  bool empty() const WEFT_REQUIRES(mutex) { return closed || bytes == 0; }
  void close() WEFT_REQUIRES(mutex) {
    closed = true;
    full = false;
    pieces.clear();
    changes.notify_all();
  }
  void run();
};

void OutputQueue::State::run() {
  rpc::MutexLock lock(mutex);
  for (;;) {
    changes.wait(lock, [&]() WEFT_REQUIRES(mutex) { return ending || !pieces.empty(); });
    if (ending) return;
    const Piece piece = std::move(pieces.front());
    pieces.pop_front();
    writing = true;
    lock.unlock();
    const bool written = write_all(piece.file, piece.text);
    lock.lock();
    writing = false;
    bytes -= piece.text.size();
    const bool relieved = full && bytes <= most / 2;
    if (relieved) full = false;
    if (!written) close();
    if (empty()) changes.notify_all();
    if (changed && (relieved || empty())) changed();
  }
}

OutputQueue::OutputQueue(std::function<void()> changed) : state_(std::make_shared<State>()) {
  state_->changed = std::move(changed);
  // Blocks all signals in the new thread: another thread waits for them.
  sigset_t every, before;
  sigfillset(&every);
  ::pthread_sigmask(SIG_SETMASK, &every, &before);
  thread_ = std::thread([state = state_] { state->run(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

OutputQueue::~OutputQueue() {
  rpc::MutexLock lock(state_->mutex);
  state_->ending = true;
  state_->changed = nullptr;
  state_->changes.notify_all();
  const bool held_up = state_->writing;
  lock.unlock();
  held_up ? thread_.detach() : thread_.join();
}

void OutputQueue::add(int file, std::string_view text) {
  constexpr std::size_t longest = 1 << 16;  // the maximum number of bytes of one write
  rpc::MutexLock lock(state_->mutex);
  if (state_->closed || text.empty()) return;
  auto& pieces = state_->pieces;
  if (!pieces.empty() && pieces.back().file == file && pieces.back().text.size() + text.size() <= longest)
    pieces.back().text += text;
  else
    pieces.push_back({file, std::string(text)});
  state_->bytes += text.size();
  if (state_->bytes >= most) state_->full = true;
  state_->changes.notify_all();
}

bool OutputQueue::full() const {
  rpc::MutexLock lock(state_->mutex);
  return state_->full;
}

bool OutputQueue::empty() const {
  rpc::MutexLock lock(state_->mutex);
  return state_->empty();
}

bool OutputQueue::closed() const {
  rpc::MutexLock lock(state_->mutex);
  return state_->closed;
}

void OutputQueue::close() {
  rpc::MutexLock lock(state_->mutex);
  state_->close();
}

bool OutputQueue::empty_within(std::chrono::milliseconds limit) const {
  rpc::MutexLock lock(state_->mutex);
  return state_->changes.wait_for(lock, limit,
                                  [&]() WEFT_REQUIRES(state_->mutex) { return state_->empty(); });
}

}  // namespace weft::tool::launch
