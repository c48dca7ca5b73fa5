// DependencyPlan and ReadyQueue: the order in which the nodes of a backward graph run.
//
// A node runs once, when all its expected arrivals have happened: one for each edge from a node of the plan,
// and one for each time that it was added as a source. This is Kahn's topological order with two differences:
// the graph is explored from its sources only, and arrivals at the sources come from outside, in any order.
// plan_parts() splits a backward that defers its weight gradients. All three are generic over the node type
// (a cheap handle that hashes and compares: a pointer, a number). They do not include LibTorch, so planning
// runs in simulations and under ThreadSanitizer.
//
// Owned by the object that runs the nodes. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <queue>
#include <stdexcept>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

namespace weft::dist_autograd {

// Payload: the data that arrives at a node before the node runs. The plan stores the payloads, so that an
// arrival costs one look-up.
template <class Node, class Payload = std::monostate>
class DependencyPlan {
 public:
  // Counts one arrival at `source` from outside and adds all that is reachable from it. Only nodes that are
  // new to the plan are explored, so sources may be added one at a time, at no higher cost than all at once.
  // `next(node, visit)` calls `visit(successor)` once for each edge that leaves `node`; `reached(node)` is
  // called once for each new node. If `next` or `reached` throws, the counts are invalid: call clear().
  template <class Next, class Reached>
  void add_source(Node source, Next&& next, Reached&& reached) {
    std::vector<Node> unexplored;
    auto count = [&](Node node) {
      auto [entry, is_new] = entries_.try_emplace(node);
      ++entry->second.pending;
      if (is_new) unexplored.push_back(node);
    };
    count(source);
    while (!unexplored.empty()) {
      Node node = unexplored.back();
      unexplored.pop_back();
      reached(node);
      next(node, count);
    }
  }

  // Without a visitor.
  template <class Next>
  void add_source(Node source, Next&& next) {
    add_source(source, std::forward<Next>(next), [](Node) {});
  }

  // Counts one arrival at `node`; `put(payload)` stores the data. Returns true for the last expected arrival:
  // the node may then run. Throws std::logic_error if the node is not in the plan (any more) or expects no
  // arrival.
  template <class Put>
  bool arrive(Node node, Put&& put) {
    auto found = entries_.find(node);
    if (found == entries_.end() || found->second.pending == 0) {
      throw std::logic_error("an arrival at a node that the plan does not wait for");
    }
    put(found->second.payload);
    return --found->second.pending == 0;
  }

  // Without a payload.
  bool arrive(Node node) {
    return arrive(node, [](Payload&) {});
  }

  // Removes a node whose arrivals have all happened, and returns its payload: the caller runs it now. Throws
  // std::logic_error if the node still expects an arrival.
  Payload take(Node node) {
    auto found = entries_.find(node);
    if (found == entries_.end() || found->second.pending != 0) {
      throw std::logic_error("a node is taken before everything has arrived there");
    }
    Payload payload = std::move(found->second.payload);
    entries_.erase(found);
    return payload;
  }

  // The data that has arrived so far at a node of the plan.
  const Payload& payload(Node node) const { return entries_.at(node).payload; }
  // Calls `visit(node, payload)` for each node that was not taken yet, in no particular order.
  template <class Visit>
  void each(Visit&& visit) const {
    for (const auto& [node, entry] : entries_) visit(node, entry.payload);
  }

  // Whether the node was added and not taken yet.
  bool contains(Node node) const { return entries_.contains(node); }
  // The number of nodes that were not taken yet.
  std::size_t size() const { return entries_.size(); }
  bool empty() const { return entries_.empty(); }
  void clear() { entries_.clear(); }

 private:
  struct Entry {
    std::size_t pending = 0;
    Payload payload{};
  };

  std::unordered_map<Node, Entry> entries_;
};

// The nodes that may run, highest sequence number first: the last operation of the forward runs first in the
// backward, so that saved tensors are freed early. Nodes with equal numbers are popped in the order in which
// they were pushed, so that a run can be repeated exactly.
template <class Node>
class ReadyQueue {
 public:
  // A node may be pushed several times.
  void push(Node node, std::uint64_t sequence) { heap_.push(Item{sequence, pushed_++, node}); }

  // Precondition: not empty.
  Node pop() {
    Node node = heap_.top().node;
    heap_.pop();
    return node;
  }

  // True if all pushed nodes have been popped.
  bool empty() const { return heap_.empty(); }
  void clear() { heap_ = {}; }

 private:
  struct Item {
    std::uint64_t sequence;
    std::uint64_t order;
    Node node;

    // std::priority_queue gives the greatest first.
    bool operator<(const Item& other) const {
      return sequence != other.sequence ? sequence < other.sequence : order > other.order;
    }
  };

  std::priority_queue<Item> heap_;
  std::uint64_t pushed_ = 0;
};

// The parts of a backward that defers its weight gradients: the input part computes the gradients that reach
// an exit, the weight part computes all other gradients. An exit is a node that sends its gradients
// elsewhere.
//   input:    an exit can be reached through each edge of the node (exits are in this part, too)
//   boundary: an exit can be reached through some edges of the node, but not through the others
//   weight:   no exit can be reached from the node
enum class NodePart : std::uint8_t { input, boundary, weight };

// nodes: all nodes of a graph. is_exit(node): whether a node without successors sends its gradients
// elsewhere.
template <class Node, class Next, class IsExit>
std::unordered_map<Node, NodePart> plan_parts(const std::vector<Node>& nodes, Next&& next, IsExit&& is_exit) {
  std::unordered_map<Node, NodePart> parts;
  std::unordered_map<Node, std::vector<Node>> previous;
  std::vector<Node> open;  // lead to an exit; the nodes before them have not been visited yet
  for (Node node : nodes) {
    parts.emplace(node, NodePart::weight);
    bool last = true;
    next(node, [&](Node behind) {
      last = false;
      previous[behind].push_back(node);
    });
    if (last && is_exit(node)) open.push_back(node);
  }
  for (Node exit : open) parts.at(exit) = NodePart::input;
  while (!open.empty()) {
    const Node node = open.back();
    open.pop_back();
    for (Node before : previous[node]) {
      if (std::exchange(parts.at(before), NodePart::input) == NodePart::weight) open.push_back(before);
    }
  }
  for (auto& [node, part] : parts) {
    if (part == NodePart::weight) continue;
    next(node, [&, &part = part](Node behind) {
      if (parts.at(behind) == NodePart::weight) part = NodePart::boundary;
    });
  }
  return parts;
}

}  // namespace weft::dist_autograd
