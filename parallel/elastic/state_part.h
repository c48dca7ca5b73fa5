// StatePart: one object that training must not lose: a module, an optimizer, a value. A program derives its
// own part from it for types that State::add() does not know.
//
// A part has the live object, and copies of it: the commit, and for State::step() the mark, of what a step
// changes before it is applied. Calls come from the thread that trains.
//
// ShardedPart: a part of which each rank has a shard, as of a sharded optimizer. A worker that dies takes its
// shard with it, so a commit also keeps copies of other ranks' shards. It has two steps: all ranks stage
// their copies, and commit() confirms them once all have done so. Until then the commit before is kept too.
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

  virtual std::string kind() const = 0;  // "module": compared between the ranks
  virtual void commit() = 0;             // copies the live object, into the memory of the copy before
  virtual void restore() = 0;            // makes the live object that of the last commit()
  // For training with State::step(). mark() copies what forward and the loop around the steps change, such as
  // buffers, generators and counters. rewind() makes that part of the live object what it was at the last
  // mark(). By default nothing: the object changes only in functions that step() applies.
  virtual void mark() {}
  virtual void rewind() {}
  // A collective: makes the live objects of all ranks that of the source.
  virtual void sync(const collectives::Group& group, int source) = 0;
  // In place of sync(), if plan.later is not empty: starts to send what only functions of step() change. It
  // is not read by a new rank meanwhile, which takes part in the next step with weight 0. Returns what each
  // rank calls before it votes on that step; an empty function: nothing.
  virtual std::function<void()> sync_later(const collectives::Group& group, const SyncPlan& plan) {
    sync(group, plan.source);
    return {};
  }
  // Training continues with these ranks. No collective.
  virtual void set_group(const collectives::Group& group) { (void)group; }
};

class WEFT_EXPORT ShardedPart : public StatePart {
 public:
  // Copies the live shard for the commit of this number. With a group, a collective: the ranks give each
  // other copies.
  virtual void stage(std::uint64_t number, const collectives::Group* group) = 0;
  // The copies do not count any more: they are not of this training, or other workers have trained without
  // this one.
  virtual void forget() = 0;
  // A collective, at the beginning of each generation: the ranks put the commit of this number together from
  // the copies that they have, and divide it among them. That becomes the live object and the commit of each.
  // failed_precondition on all ranks: no rank has some of it.
  virtual void reshard(const collectives::Group& group, std::uint64_t number) = 0;
  // Whether the live object has values: not after a reshard() that has failed.
  virtual bool has_values() const = 0;
  // Has no effect: reshard() gives each rank its shard.
  void sync(const collectives::Group& group, int source) final { (void)group, (void)source; }
};

}  // namespace weft::elastic
