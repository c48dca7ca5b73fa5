// ObservedRange: a range, such as a data loader of LibTorch, that reports which element a loop has reached.
//
// An input range, for one loop. The range must outlive it. As thread-safe as the range.
#pragma once

#include <functional>
#include <utility>

namespace weft::training {

template <class Range>
class ObservedRange {
 public:
  // Called when the loop reaches an element, and with false when it reaches the end. The loop throws its
  // exceptions.
  using Reached = std::function<void(bool has_element)>;
  ObservedRange(Range& range, Reached reached) : range_(&range), reached_(std::move(reached)) {}

  // The end of the range, and its iterator.
  struct Sentinel {};
  class Cursor {
   public:
    explicit Cursor(ObservedRange& of)
        : next_(of.range_->begin()), end_(of.range_->end()), reached_(of.reached_) {
      reached_(next_ != end_);
    }
    decltype(auto) operator*() { return *next_; }
    Cursor& operator++() {
      ++next_;
      reached_(next_ != end_);
      return *this;
    }
    bool operator!=(Sentinel) const { return next_ != end_; }

   private:
    decltype(std::declval<Range&>().begin()) next_;
    decltype(std::declval<Range&>().end()) end_;
    Reached reached_;
  };
  Cursor begin() { return Cursor(*this); }
  Sentinel end() { return {}; }

 private:
  Range* range_;
  Reached reached_;
};

}  // namespace weft::training
