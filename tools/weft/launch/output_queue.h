// OutputQueue: what goes to files whose reader may be slow, or not read at all. A thread of its own writes
// it, so that nobody else waits for the reader.
//
// A thread, since nothing less keeps a write from waiting: where a poll says that a terminal has room, a
// write may find too little of it, and O_NONBLOCK would hold for everybody who shares the file. The queue
// takes all that it is given; whoever can wait with more does so while it is full(). Its end waits for
// nobody: what has not been written by then is lost, and a thread whose reader holds it up goes with the
// process. Thread-safe; `changed` is called on its thread, and may neither block nor call the queue.
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
