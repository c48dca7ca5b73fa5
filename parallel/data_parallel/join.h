// Join: lets ranks with different numbers of batches train together.
//
//   for (auto& batch : ddp.join(*loader)) { ... }
//
// Before each forward, the ranks exchange whether they have a batch. A rank without a batch calls the
// collectives of the other ranks too ("shadows" them), without gradients, until no rank has a batch. Then all
// ranks get the parameters of a rank that trained to the end, and its buffers unless Options::buffers is
// local. The state of optimizers is not copied. All collectives run within the loop, none in a destructor. If
// a rank leaves the loop early, the other ranks wait until the group's timeout, and get an error that names
// the rank.
#pragma once

#include <weft/parallel/training/observed_range.h>
#include <weft/rpc/core/export.h>

#include <utility>
#include <vector>

namespace weft::data_parallel {

// The options must be equal on all ranks.
struct JoinOptions {
  // true: gradients are averaged over the ranks that still have batches. false: over all ranks of the group,
  // so that a batch has the same weight in every iteration.
  bool divide_by_active = false;
  // Fail with failed_precondition on all ranks as soon as one rank has no batch left.
  bool throw_early = false;
};

// An object that calls collectives of another group in each iteration. A rank without a batch calls these
// functions instead of the object's forward, backward and step.
class WEFT_EXPORT Joinable {
 public:
  virtual ~Joinable() = default;
  // source: a rank that has a batch.
  virtual void shadow_forward(int source) = 0;
  virtual void shadow_backward() = 0;
  // Called after the gradients of an iteration have been reduced, but not after an iteration within
  // no_sync(). For an optimizer whose steps are collectives.
  virtual void shadow_step(int source) { (void)source; }
  // Called on all ranks when no rank has a batch. source: a rank that trained to the end.
  virtual void finish_join(int source) = 0;
};

// The exchange of the ranks before each forward. Replica implements it.
class WEFT_EXPORT Joining {
 public:
  virtual ~Joining() = default;
  // begin_join() begins a join; all ranks call it. leave_join() ends the join on this rank, also if its loop
  // stopped early.
  virtual void begin_join(const JoinOptions& options, std::vector<Joinable*> others) = 0;
  virtual void drain_join() = 0;  // this rank has no batch left: blocks until no rank has one
  virtual void leave_join() noexcept = 0;
};

// The elements of a range, such as a data loader of LibTorch, within a join. An input range, for one loop.
template <class Range>
class JoinedRange : public training::ObservedRange<Range> {
 public:
  // Both arguments must outlive this object.
  JoinedRange(Joining& joining, Range& range)
      : training::ObservedRange<Range>(range,
                                       [&joining](bool has_element) {
                                         if (!has_element) joining.drain_join();
                                       }),
        joining_(&joining) {}
  JoinedRange(JoinedRange&& other) noexcept
      : training::ObservedRange<Range>(std::move(other)), joining_(std::exchange(other.joining_, nullptr)) {}
  JoinedRange& operator=(JoinedRange&&) = delete;
  ~JoinedRange() {
    if (joining_ != nullptr) joining_->leave_join();
  }

 private:
  Joining* joining_;
};

}  // namespace weft::data_parallel
