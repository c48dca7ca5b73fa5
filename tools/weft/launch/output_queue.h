// OutputQueue: output for files whose reader may be slow, or may not read at all. The queue's own thread
// writes the output, so that no other thread waits for the reader.
//
// Only a separate thread keeps writes from blocking the other threads: even if poll() reports room in a
// terminal, a write may block, and O_NONBLOCK would apply to all processes that share the file. The queue
// accepts all output; callers that can wait should not add more while it is full(). The destructor does not
// wait: output that has not been written by then is lost, and a thread that is blocked by its reader ends
// with the process. Thread-safe; `changed` is called on the queue's thread, and may neither block nor call
// the queue.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string_view>
#include <thread>

namespace weft::tool::launch {

class OutputQueue {
 public:
  static constexpr std::size_t most = 1 << 20;  // bytes; with more, the queue is full

  // changed: called when the queue is no longer full, is empty, or is closed.
  explicit OutputQueue(std::function<void()> changed);
  ~OutputQueue();

  void add(int file, std::string_view text);
  bool full() const;    // stays true until half of the bytes were written
  bool empty() const;   // all output has been written, or the queue is closed
  bool closed() const;  // the output has no reader any more: further output is dropped
  void close();         // as if the output had no reader
  bool empty_within(std::chrono::milliseconds limit) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace weft::tool::launch
