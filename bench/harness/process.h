// Process: a child that runs one function, and a channel of short messages to it.
//
// The child is forked, so the parent must not have started a thread. The child may become another program
// (Channel::become). The child is killed if its parent exits, and it exits without running destructors of the
// parent's objects. The output of the child is kept for error messages. Thread-safety: one thread.
#pragma once

#include "bench/harness/pins.h"

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace weft::bench {

// One end of a socket pair; a message is a packet.
class Channel {
 public:
  explicit Channel(int descriptor) : descriptor_(descriptor) {}
  Channel(Channel&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Channel& operator=(Channel&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~Channel();

  void send(const std::string& message);
  // Returns nothing if the other end is closed. Throws std::runtime_error on a timeout.
  std::optional<std::string> receive(std::chrono::milliseconds timeout = std::chrono::hours{24});
  // Replaces the calling process with another program, which has this end as its descriptor
  // `inherited_channel`. Throws std::system_error if the program cannot be started.
  [[noreturn]] void become(const std::vector<std::string>& command);

 private:
  friend std::optional<std::size_t> first_ready(std::initializer_list<const Channel*> channels,
                                                std::chrono::milliseconds timeout);
  int descriptor_;
};

inline constexpr int inherited_channel = 3;

// Returns the index of the first channel that has a message or whose other end is closed. Returns nothing on
// a timeout.
std::optional<std::size_t> first_ready(std::initializer_list<const Channel*> channels,
                                       std::chrono::milliseconds timeout);

class Process {
 public:
  // Runs body on the cores of process number `index`. If the body throws, the child prints the message of the
  // exception and exits.
  Process(const Pins& pins, std::size_t index, const std::function<void(Channel&)>& body);
  ~Process();  // kills the child if it still runs
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  Channel& channel() { return channel_; }
  // Returns the child's next message. If no message arrives, throws std::runtime_error, which names the child
  // as `who` and states how it exited.
  std::string expect(const std::string& who, std::chrono::milliseconds timeout);
  // Waits for the child, and kills it after the timeout. The first call returns how the child failed, or an
  // empty text if it succeeded.
  std::string end(std::chrono::milliseconds timeout);

 private:
  std::string last_words() const;

  int output_;  // a file in memory that the child prints to
  Channel channel_{-1};
  pid_t pid_ = -1;
};

std::size_t count_threads();  // the number of threads of this process
// A path for a listener or a store that no other process uses. The function that uses the path removes it.
std::string scratch_path(const std::string& suffix);

}  // namespace weft::bench
