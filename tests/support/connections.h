// One end of a connection under test, and the loops that connections live on.
#pragma once

#include <weft/rpc/core/asio_loop.h>
#include <weft/rpc/testing/wait.h>
#include <weft/rpc/transport/transport.h>

#include <deque>
#include <functional>

namespace weft::test {

// Runs f on the loop, and returns after f has returned.
template <class F>
void on(rpc::Loop& loop, F f) {
  Event done;
  loop.post([&] {
    f();
    done.set();
  });
  done.wait();
}

// Keeps the frames that the connection delivers.
class End final : public rpc::ConnectionObserver {
 public:
  explicit End(std::shared_ptr<rpc::Connection> connection) : connection_(std::move(connection)) {}

  rpc::Connection& connection() { return *connection_; }
  rpc::Loop& loop() { return *connection_->loop(); }
  std::function<void(const rpc::InboundFrame&)> react;  // called on the loop, before the frame is kept

  void on_frame(rpc::InboundFrame&& frame) override {
    if (react) react(frame);
    std::lock_guard lock(mutex_);
    on_loop_ = on_loop_ && connection_->loop()->running_here();
    frames_.push_back(std::move(frame));
    changed_.notify_all();
  }
  void on_closed(const rpc::Error& reason) override {
    std::lock_guard lock(mutex_);
    on_loop_ = on_loop_ && connection_->loop()->running_here();
    reasons_.push_back(reason);
    changed_.notify_all();
  }

  rpc::InboundFrame next() {
    std::unique_lock lock(mutex_);
    wait(lock, [this] { return !frames_.empty() || !reasons_.empty(); });
    if (frames_.empty())
      throw std::runtime_error(std::string("closed instead of a frame: ") + reasons_.front().what());
    rpc::InboundFrame frame = std::move(frames_.front());
    frames_.pop_front();
    return frame;
  }
  // Waits until the connection has closed and returns the reason. The frames delivered before may still be
  // taken.
  rpc::Error closed() {
    std::unique_lock lock(mutex_);
    wait(lock, [this] { return !reasons_.empty(); });
    return reasons_.front();
  }
  std::size_t times_closed() {
    std::lock_guard lock(mutex_);
    return reasons_.size();
  }
  std::size_t frames_left() {
    std::lock_guard lock(mutex_);
    return frames_.size();
  }
  bool called_on_its_loop() {
    std::lock_guard lock(mutex_);
    return on_loop_;
  }

 private:
  template <class Ready>
  void wait(std::unique_lock<std::mutex>& lock, Ready ready) {
    if (!changed_.wait_for(lock, too_long, ready))
      throw std::runtime_error("waited a minute for a connection");
  }

  const std::shared_ptr<rpc::Connection> connection_;
  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::deque<rpc::InboundFrame> frames_;
  std::vector<rpc::Error> reasons_;
  bool on_loop_ = true;
};

}  // namespace weft::test
