// OutputQueue: output for files whose reader may be slow, or may not read at all. The queue's own thread
// writes it, so that no other thread waits for the reader.
//
// Only a thread keeps a write from blocking: if poll() reports room in a terminal, a write may still find too
// little of it, and O_NONBLOCK would hold for all processes that share the file. The queue accepts all
// output; callers that can wait with more do so while it is full(). The destructor does not wait: output that
// has not been written by then is lost, and a thread that is blocked by its reader ends with the process.
// Thread-safe; `changed` is called on the queue's thread, and may neither block nor call the queue.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string_view>
#include <thread>

namespace weft::tool::launch {

class OutputQueue {
 public:
  static constexpr std::size_t most = 1 << 20;  // bytes, from which on it is full

  // `changed`: it is no longer full, or empty, or closed.
  explicit OutputQueue(std::function<void()> changed);
  ~OutputQueue();

  void add(int file, std::string_view text);
  bool full() const;    // until half of it has been written
  bool empty() const;   // all has been written, or it is closed
  bool closed() const;  // nobody reads any more: all that is added is dropped
  void close();         // as if nobody read
  bool empty_within(std::chrono::milliseconds limit) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace weft::tool::launch
