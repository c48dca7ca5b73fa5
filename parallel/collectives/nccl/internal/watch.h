// Watch: polls objects that do not report completion themselves: NCCL's communicators and events of a device.
//
// It uses one timer of a loop for all objects, and no thread. The time between two polls is a sixteenth of
// the time since the last add(), within limits: short work is detected soon, and long work costs little. A
// watched object is kept until its look() returns false, or until the Watch or its loop ends; the object is
// not notified of that end. Any thread may call add(), also within look().
#pragma once

#include <weft/rpc/core/loop.h>

#include <memory>

namespace weft::collectives::nccl {

// An object that a Watch polls.
class Watched {
 public:
  virtual ~Watched() = default;
  // On the loop: must not block. false: no more calls, until it is added again.
  virtual bool look(rpc::Clock::time_point now) = 0;
};

// The time between two polls.
struct WatchInterval {
  std::chrono::nanoseconds shortest = std::chrono::microseconds{20};
  std::chrono::nanoseconds longest = std::chrono::milliseconds{1};
};

class WEFT_EXPORT Watch {
 public:
  explicit Watch(std::shared_ptr<rpc::Loop> loop, WatchInterval interval = {});
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // Adding an object again has no effect. The next poll follows soon, also if a longer interval has begun.
  void add(std::shared_ptr<Watched> watched);
  void end();  // releases the watched objects, and those that are added later. Any thread; idempotent
  // The loop that polls. Constant.
  const std::shared_ptr<rpc::Loop>& loop() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace weft::collectives::nccl
