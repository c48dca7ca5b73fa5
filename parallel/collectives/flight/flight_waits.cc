#include <weft/parallel/collectives/flight/flight_waits.h>

#include <algorithm>
#include <queue>
#include <span>

namespace weft::collectives {
namespace {

void add_messages(const FlightGroup& group, std::vector<FlightWait>& waits) {
  const std::size_t begin = waits.size();
  for (int rank = 0; rank < group.size(); ++rank)
    for (const FlightEntry* entry : group.open[static_cast<std::size_t>(rank)])
      if (entry->is_message()) waits.push_back({.group = &group, .rank = rank, .entry = entry});
  // By receiver and tag: the receives without a matching send, in order.
  std::map<std::pair<int, std::uint64_t>, std::vector<FlightWait*>> receives;
  const auto messages = std::span(waits).subspan(begin);
  for (FlightWait& wait : messages)
    if (wait.entry->kind == FlightKind::recv) receives[{wait.rank, wait.entry->tag}].push_back(&wait);
  for (FlightWait& send : messages) {
    if (send.entry->kind != FlightKind::send) continue;
    auto& candidates = receives[{send.entry->peer, send.entry->tag}];
    const auto found = std::find_if(candidates.begin(), candidates.end(), [&](const FlightWait* receive) {
      return receive->entry->peer == -1 || receive->entry->peer == send.rank;
    });
    if (found == candidates.end()) continue;
    FlightWait& receive = **found;
    candidates.erase(found);
    send.partner = receive.entry;
    send.partner_rank = receive.rank;
    receive.partner = send.entry;
    receive.partner_rank = send.rank;
  }
  for (FlightWait& wait : messages)
    if (wait.partner == nullptr && wait.entry->peer >= 0) wait.awaited = {wait.entry->peer};
}

// The graph of members, by name; an edge is a wait and the member that it is for.
class Graph {
 public:
  explicit Graph(const std::vector<FlightWait>& waits) {
    for (const FlightWait& wait : waits)
      for (const int awaited : wait.awaited) {
        const std::size_t from = node(*wait.group, wait.rank), to = node(*wait.group, awaited);
        out_[from].push_back({{&wait, awaited}, from, to});
        in_[to].push_back(from);
        ++degree_[from];
      }
    for (std::size_t i = 0; i < out_.size(); ++i)
      if (degree_[i] == 0) remove(i);
  }

  // Every remaining member waits for a remaining member: from each of them a path leads into a cycle.
  std::vector<FlightCycle> cycles() {
    std::vector<FlightCycle> cycles;
    for (std::size_t start = 0; start < out_.size(); ++start) {
      while (!removed_[start]) {  // several cycles may be reachable from it
        // This number of steps certainly ends in a cycle; some of its members may be in a shorter one.
        std::size_t at = start;
        for (std::size_t step = 0; step < out_.size(); ++step) at = next(at);
        std::vector<Edge> cycle = shortest(at);
        for (const Edge& edge : std::vector<Edge>(cycle))
          if (auto other = shortest(edge.to); other.size() < cycle.size()) cycle = std::move(other);
        std::rotate(cycle.begin(), std::min_element(cycle.begin(), cycle.end(), before), cycle.end());
        cycles.emplace_back();
        for (const Edge& edge : cycle) {
          cycles.back().push_back(edge.link);
          remove(edge.to);
        }
      }
    }
    return cycles;
  }

 private:
  struct Edge {
    FlightLink link;
    std::size_t from, to;
  };
  static bool before(const Edge& a, const Edge& b) { return a.from < b.from; }

  std::size_t node(const FlightGroup& group, int rank) {
    const auto [found, is_new] = nodes_.emplace(group.members[static_cast<std::size_t>(rank)], nodes_.size());
    if (is_new) {
      out_.emplace_back();
      in_.emplace_back();
      degree_.push_back(0);
      removed_.push_back(false);
    }
    return found->second;
  }
  // Removes a member, and all members that then wait for no other member.
  void remove(std::size_t node) {
    std::vector<std::size_t> gone{node};
    while (!gone.empty()) {
      const std::size_t one = gone.back();
      gone.pop_back();
      if (removed_[one]) continue;
      removed_[one] = true;
      for (const std::size_t waiting : in_[one])
        if (--degree_[waiting] == 0) gone.push_back(waiting);
    }
  }
  std::size_t next(std::size_t node) const {
    return std::find_if(out_[node].begin(), out_[node].end(),
                        [&](const Edge& edge) { return !removed_[edge.to]; })
        ->to;
  }
  // Returns the shortest cycle through a node that is in a cycle.
  std::vector<Edge> shortest(std::size_t goal) const {
    std::vector<const Edge*> came(out_.size());  // the edge by which a node was reached
    std::queue<std::size_t> open;
    for (open.push(goal); came[goal] == nullptr; open.pop())
      for (const Edge& edge : out_[open.front()])
        if (!removed_[edge.to] && came[edge.to] == nullptr) {
          came[edge.to] = &edge;
          open.push(edge.to);
        }
    std::vector<Edge> cycle;
    std::size_t at = goal;
    do {
      cycle.push_back(*came[at]);
      at = came[at]->from;
    } while (at != goal);
    std::reverse(cycle.begin(), cycle.end());
    return cycle;
  }

  std::map<std::string, std::size_t> nodes_;
  std::vector<std::vector<Edge>> out_;
  std::vector<std::vector<std::size_t>> in_;
  std::vector<std::size_t> degree_;  // the number of edges to nodes that are not removed
  std::vector<bool> removed_;
};

}  // namespace

std::vector<FlightWait> flight_waits(const std::vector<FlightGroup>& groups) {
  std::vector<FlightWait> waits;
  for (const FlightGroup& group : groups) {
    for (int rank = 0; rank < group.size(); ++rank)
      for (const FlightEntry* entry : group.open[static_cast<std::size_t>(rank)]) {
        if (entry->is_message()) continue;
        FlightWait wait{.group = &group, .rank = rank, .entry = entry};
        for (int other = 0; other < group.size(); ++other)
          if (!group.has_begun(other, ordinal_of(*entry))) wait.awaited.push_back(other);
        waits.push_back(std::move(wait));
      }
    add_messages(group, waits);
  }
  return waits;
}

std::vector<FlightCycle> flight_cycles(const std::vector<FlightWait>& waits) { return Graph(waits).cycles(); }

}  // namespace weft::collectives
