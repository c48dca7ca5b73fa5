// Join: lets ranks with different numbers of batches train together.
//
//   for (auto& batch : ddp.join(*loader)) { ... }
//
// The ranks tell each other before each forward whether they have a batch. A rank that has none left shadows
// the collectives of the others, without gradients, until no rank has one. Then all ranks take
// over the parameters, and unless they are local the buffers, of a rank that trained to the end. The state of
// optimizers is not taken over. All collectives run within the loop, none in a destructor. A rank that leaves
// the loop early lets the others wait until the group's timeout names it.
#pragma once

#include <weft/rpc/core/export.h>

#include <iterator>
#include <memory>
#include <utility>
#include <vector>

namespace weft::data_parallel {

// The same on all ranks.
struct JoinOptions {
  // The mean of the ranks that still have batches. Off: of all ranks of the group, so that a batch
  // has the same weight in every iteration.
  bool divide_by_active = false;
  // failed_precondition on all ranks as soon as one has no batch left.
  bool throw_early = false;
};

// Another user of collectives in each iteration, with its own group: the functions that a rank
// without a batch calls instead.
class WEFT_EXPORT Joinable {
 public:
  virtual ~Joinable() = default;
  // source: a rank that has a batch.
  virtual void shadow_forward(int source) = 0;
  virtual void shadow_backward() = 0;
  // After the gradients of an iteration that is reduced: an optimizer whose steps are collectives.
  virtual void shadow_step(int source) { (void)source; }
  // source: a rank that trained to the end. On all ranks.
  virtual void finish_join(int source) = 0;
};

// The ranks' exchange before each forward. Of a Replica.
class WEFT_EXPORT Joining {
 public:
  virtual ~Joining() = default;
  // begin_join() begins a join, on all ranks. leave_join() ends it on this rank, also where its loop stopped
  // early.
  virtual void begin_join(const JoinOptions& options, std::vector<Joinable*> others) = 0;
  virtual void drain_join() = 0;  // this rank has no batch left: blocks until no rank has one
  virtual void leave_join() noexcept = 0;
};

// The elements of a range, such as a data loader of LibTorch, within a join. An input range, for one loop.
template <class Range>
class JoinedRange {
 public:
  // The iterators of the range itself.
  using Iterator = decltype(std::declval<Range&>().begin());
  using End = decltype(std::declval<Range&>().end());

  // Both outlive this.
  JoinedRange(Joining& joining, Range& range) : joining_(&joining), range_(&range) {}
  JoinedRange(JoinedRange&& other) noexcept
      : joining_(std::exchange(other.joining_, nullptr)), range_(other.range_) {}
  JoinedRange& operator=(JoinedRange&&) = delete;
  ~JoinedRange() {
    if (joining_ != nullptr) joining_->leave_join();
  }

  // The end of the range, and its iterator.
  struct Sentinel {};
  class Cursor {
   public:
    Cursor(Joining& joining, Iterator next, End end)
        : joining_(&joining), next_(std::move(next)), end_(std::move(end)) {
      drain_at_the_end();
    }
    decltype(auto) operator*() { return *next_; }
    Cursor& operator++() {
      ++next_;
      drain_at_the_end();
      return *this;
    }
    bool operator!=(Sentinel) const { return next_ != end_; }

   private:
    void drain_at_the_end() {
      if (!(next_ != end_)) joining_->drain_join();
    }
    Joining* joining_;
    Iterator next_;
    End end_;
  };
  Cursor begin() { return Cursor(*joining_, range_->begin(), range_->end()); }
  Sentinel end() { return {}; }

 private:
  Joining* joining_;
  Range* range_;
};

}  // namespace weft::data_parallel
