// Dependencies: a graph that states for each action of a schedule which other actions it waits for.
// Validation, placement of messages and simulation use it.
//
// Nodes are the actions of all ranks, rank after rank, and then the messages. A message is the transfer of a
// value over an edge between two ranks. If the schedule has sends and receives, a message waits for both of
// them; otherwise it follows the computation that makes its value. A node waits for its predecessors. Edges
// also express that a rank starts its actions in order. Thread-safety: an immutable value.
#pragma once

#include <weft/parallel/schedule/schedule.h>

#include <cstdint>
#include <string>
#include <vector>

namespace weft::schedule {

// A message, or a reduction of a stage's gradients. For a reduction, `edge` leads from the stage to itself,
// and `microbatch` is the number of the reduction.
struct EdgeMessage {
  Edge edge;
  int microbatch = 0;
  bool gradient = false;
  int from = 0, to = 0;  // ranks

  bool reduction() const { return edge.from == edge.to; }
};

class Dependencies {
 public:
  using Node = std::uint32_t;

  // Checks the structure: see validate(). Keeps a reference to the schedule, which must outlive this object.
  Dependencies(const Schedule& schedule, const std::string& operation);

  std::size_t nodes() const { return predecessors_.size(); }
  std::size_t actions() const { return rank_of_.size(); }
  bool is_message(Node node) const { return node >= actions(); }

  std::size_t ranks() const { return first_.size(); }
  std::size_t length(std::size_t rank) const { return schedule_.ranks[rank].size(); }
  int rank(Node action) const { return rank_of_[action]; }
  std::size_t index(Node action) const { return action - first_[static_cast<std::size_t>(rank_of_[action])]; }
  const Action& action(Node node) const {
    return schedule_.ranks[static_cast<std::size_t>(rank(node))][index(node)];
  }
  Node node(std::size_t rank, std::size_t index) const { return first_[rank] + static_cast<Node>(index); }
  const EdgeMessage& message_of(Node node) const { return messages_[node - actions()]; }

  // Whether the schedule contains its messages as actions (sends, receives and waits).
  bool has_messages() const { return has_messages_; }
  std::uint32_t predecessors(Node node) const { return predecessors_[node]; }
  template <class Visit>
  void for_each_successor(Node node, Visit&& visit) const {
    for (std::uint32_t i = begins_[node]; i < begins_[node + 1]; ++i) visit(successors_[i]);
  }

  std::string describe(Node node) const;  // "rank 1, action 3 (2F0)"

  // For an error: a cycle among the nodes that a run did not complete.
  std::string describe_cycle(const std::vector<bool>& completed) const;

 private:
  class Builder;

  const Schedule& schedule_;
  bool has_messages_ = false;
  std::vector<Node> first_;  // of each rank
  std::vector<int> rank_of_;
  std::vector<EdgeMessage> messages_;
  std::vector<std::uint32_t> predecessors_;  // how many
  std::vector<std::uint32_t> begins_;        // into successors_
  std::vector<Node> successors_;
};

}  // namespace weft::schedule
