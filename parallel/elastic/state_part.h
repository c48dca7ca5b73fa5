// StatePart: one part of what training must not lose: a module, an optimizer, a value. A program derives its
// own part from it for what State::add() does not know.
//
// A part has the live object and a copy of it, the commit. Calls come from the thread that trains.
#pragma once

#include <weft/parallel/collectives/group.h>

#include <string>

namespace weft::elastic {

class WEFT_EXPORT StatePart {
 public:
  virtual ~StatePart() = default;

  virtual std::string kind() const = 0;  // "module": compared between the ranks
  virtual void commit() = 0;             // copies the live object, into the memory of the copy before
  virtual void restore() = 0;            // makes the live object that of the last commit()
  // A collective: makes the live objects of all ranks that of the source.
  virtual void sync(const collectives::Group& group, int source) = 0;
  // Training goes on with these ranks. No collective.
  virtual void set_group(const collectives::Group& group) { (void)group; }
};

}  // namespace weft::elastic
