// Forks: the references to one object that its owner knows, by their ids.
//
// They are stored in order in one block of memory: most objects have one or two forks, and each fork uses 32
// bytes. The time to find a fork is logarithmic in their number. Adding or removing a fork moves the forks
// after it. Thread-safety: none.
#pragma once

#include <weft/rpc/core/agent_id.h>
#include <weft/rref/protocol/ids.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace weft::rref::protocol {

// Whether the user has the fork. arrived: the user has it. in_transit: the owner has sent it. probing: the
// owner has asked the user (ForkProbe).
enum class Transit : std::uint8_t { arrived, in_transit, probing };

// A fork, as its owner sees it.
struct Fork {
  ForkId id;
  const rpc::AgentId* user = nullptr;  // the owner's table has one AgentId for each user
  Transit transit = Transit::arrived;
};

class Forks {
 public:
  // The forks in the order of their ids.
  bool empty() const { return forks_.empty(); }
  auto begin() { return forks_.begin(); }
  auto end() { return forks_.end(); }
  auto begin() const { return forks_.begin(); }
  auto end() const { return forks_.end(); }

  // Null if the object has no such fork. Pointers are valid until the next add() or erase().
  Fork* find(const ForkId& id) {
    const auto place = place_of(id);
    return place != forks_.end() && place->id == id ? &*place : nullptr;
  }
  bool contains(const ForkId& id) const { return const_cast<Forks*>(this)->find(id) != nullptr; }
  void add(Fork fork) {  // its id must be new
    forks_.insert(place_of(fork.id), fork);
  }
  // `fork`: a pointer that find() returned.
  void erase(const Fork* fork) { forks_.erase(forks_.begin() + (fork - forks_.data())); }
  // Removes all forks of a user, and returns their number.
  std::size_t erase_of(const rpc::AgentId& user) {
    return std::erase_if(forks_, [&](const Fork& fork) { return *fork.user == user; });
  }

 private:
  std::vector<Fork>::iterator place_of(const ForkId& id) {
    return std::lower_bound(forks_.begin(), forks_.end(), id,
                            [](const Fork& fork, const ForkId& sought) { return fork.id < sought; });
  }

  std::vector<Fork> forks_;  // sorted by id
};

}  // namespace weft::rref::protocol
