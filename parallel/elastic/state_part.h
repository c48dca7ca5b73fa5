// StatePart: one object that training must keep, such as a module, an optimizer or a value. For types that
// State::add() does not support, a program derives its own part.
//
// A part has the live object and copies of it: the commit, and for State::step() the mark, which is a copy of
// the data that a step changes before the step is applied. The thread that trains makes all calls.
//
// ShardedPart: a part that is split over the ranks, such as a sharded optimizer: each rank has one shard. The
// shard of a worker that dies is lost, so a commit also keeps copies of other ranks' shards. A commit has two
// steps: all ranks stage their copies, and commit() confirms them when all ranks have done so. Until then the
// previous commit is kept too.
#pragma once

#include <weft/parallel/collectives/group.h>
#include <weft/parallel/elastic/plan/generation.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace weft::elastic {

class WEFT_EXPORT StatePart {
 public:
  virtual ~StatePart() = default;

  virtual std::string kind() const = 0;  // such as "module"; compared between the ranks
  virtual void commit() = 0;             // copies the live object, into the memory of the previous copy
  virtual void restore() = 0;            // restores the live object from the last commit()
  // For training with State::step(). mark() copies the data that forward and the training loop change, such
  // as buffers, generators and counters. rewind() restores these data from the last mark(). The defaults do
  // nothing, for objects that change only in the function that step() applies.
  virtual void mark() {}
  virtual void rewind() {}
  // A collective: copies the live object of the source to all ranks.
  virtual void sync(const collectives::Group& group, int source) = 0;
  // Called instead of sync() if plan.later is not empty: starts to send the data that only the function of
  // step() changes. A new rank does not use these data yet: it takes part in the next step with weight 0.
  // Returns a function that each rank calls before it votes on that step; it may be empty.
  virtual std::function<void()> sync_later(const collectives::Group& group, const SyncPlan& plan) {
    sync(group, plan.source);
    return {};
  }
  // Sets the ranks with which training continues. Runs no collective.
  virtual void set_group(const collectives::Group& group) { (void)group; }
};

class WEFT_EXPORT ShardedPart : public StatePart {
 public:
  // Copies the live shard for the commit of this number. If a group is given, the call is a collective in
  // which the ranks exchange copies.
  virtual void stage(std::uint64_t number, const collectives::Group* group) = 0;
  // Invalidates the copies. Called if they belong to another training, or if other workers have trained
  // without this one.
  virtual void forget() = 0;
  // A collective at the beginning of each generation: the ranks combine the commit of this number from their
  // copies, and divide it among themselves. The result becomes each rank's live object and commit.
  // failed_precondition on all ranks: no rank has a copy of some part.
  virtual void reshard(const collectives::Group& group, std::uint64_t number) = 0;
  // Whether the live object has values. False after a failed reshard().
  virtual bool has_values() const = 0;
  // Has no effect: reshard() gives each rank its shard.
  void sync(const collectives::Group& group, int source) final { (void)group, (void)source; }
};

}  // namespace weft::elastic
