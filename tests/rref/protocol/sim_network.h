// The simulation's network: frames in flight between numbered agents, delivered in any order, one at a time.
//
// A frame is a closure that runs at its receiver. Frames of the protocol may be dropped (their sender
// repeats them) and duplicated; frames that carry a call or a reply of the program are duplicated, and lost
// only when a connection ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <utility>
#include <vector>

namespace weft::rref::protocol::sim {

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  std::uint64_t next() { return engine_(); }
  std::size_t below(std::size_t bound) { return static_cast<std::size_t>(engine_() % bound); }
  bool chance(std::size_t percent) { return below(100) < percent; }

 private:
  std::mt19937_64 engine_;
};

struct Call;

struct Frame {
  enum class Kind : std::uint8_t { local, protocol, program };

  Kind kind = Kind::local;
  std::size_t from = 0;
  std::size_t to = 0;
  std::function<void()> deliver;
  std::function<void()> lost;  // for frames of the protocol: the sender's repetition
  std::shared_ptr<Call> call;  // program: the call that it belongs to
  bool alone = false;          // never duplicated

  bool between(std::size_t a, std::size_t b) const {
    return kind != Kind::local && ((from == a && to == b) || (from == b && to == a));
  }
};

class Network {
 public:
  explicit Network(Random& random) : random_(random) {}

  bool faulty = true;  // drops and duplicates

  void push(Frame frame) { frames_.push_back(std::move(frame)); }
  // A repetition that waits, so that a dead receiver does not keep the network busy.
  void push_later(Frame frame) { later_.push_back(std::move(frame)); }
  bool empty() const { return frames_.empty() && later_.empty(); }

  // Delivers one frame, drawn at random. `alive` returns whether an agent still receives.
  void step(const std::function<bool(std::size_t)>& alive) {
    if (!later_.empty() && (frames_.empty() || random_.chance(10))) {
      std::move(later_.begin(), later_.end(), std::back_inserter(frames_));
      later_.clear();
    }
    if (frames_.empty()) return;
    const std::size_t index = random_.below(frames_.size());
    std::swap(frames_[index], frames_.back());
    Frame frame = frames_.back();
    frames_.pop_back();
    if (!alive(frame.to) || (faulty && frame.kind == Frame::Kind::protocol && random_.chance(8))) {
      if (frame.lost) frame.lost();
      return;
    }
    if (faulty && frame.kind != Frame::Kind::local && !frame.alone && random_.chance(8))
      frames_.push_back(frame);
    frame.deliver();
  }

  // Removes frames, drawn at random, between two agents whose connection ended. The remaining frames arrive
  // late.
  std::vector<Frame> cut(std::size_t a, std::size_t b) {
    std::vector<Frame> taken, kept;
    for (Frame& frame : frames_) {
      (frame.between(a, b) && random_.chance(60) ? taken : kept).push_back(std::move(frame));
    }
    frames_ = std::move(kept);
    return taken;
  }

 private:
  Random& random_;
  std::vector<Frame> frames_;
  std::vector<Frame> later_;
};

}  // namespace weft::rref::protocol::sim
