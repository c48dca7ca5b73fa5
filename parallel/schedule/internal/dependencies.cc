// The builder visits the actions twice. First it notes the position of each computation and message, and
// rejects duplicates and impossible positions. Then it connects each action with the actions for which it
// waits.
#include <weft/parallel/schedule/internal/dependencies.h>

#include <weft/parallel/schedule/internal/refuse.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>

namespace weft::schedule {
namespace {

constexpr auto none = std::numeric_limits<Dependencies::Node>::max();

}  // namespace

class Dependencies::Builder {
 public:
  Builder(Dependencies& result, const std::string& operation)
      : result_(result), schedule_(result.schedule_), operation_(operation) {}

  void build() {
    check_shape();
    for_each([&](Node node, const Action& action) { note(node, action); });
    check_complete();
    if (result_.has_messages_) check_messages();
    for_each([&](Node node, const Action& action) { connect(node, action); });
    for (std::size_t rank = 0; rank < schedule_.ranks.size(); ++rank)
      for (std::size_t i = 1; i < schedule_.ranks[rank].size(); ++i)
        add(result_.node(rank, i - 1), result_.node(rank, i));
    connect_messages();
    connect_reductions();
    finish();
  }

 private:
  // The positions at which a value is sent and received.
  struct Transfer {
    Node send = none, receive = none, message = none;
  };

  [[noreturn]] void fail(const std::string& why) const { refuse(operation_, why); }
  [[noreturn]] void fail(Node node, const std::string& why) const {
    fail(result_.describe(node) + ": " + why);
  }

  template <class Visit>
  void for_each(Visit&& visit) const {
    for (Node node = 0; node < result_.actions(); ++node)
      for_each_part(result_.action(node), [&](const Action& action) { visit(node, action); });
  }

  std::size_t place(int stage, int microbatch) const {
    return static_cast<std::size_t>(stage) * static_cast<std::size_t>(schedule_.microbatches) +
           static_cast<std::size_t>(microbatch);
  }

  Transfer& transfer_of(const Edge& edge, int microbatch, bool gradient) {
    const auto known = std::lower_bound(schedule_.edges.begin(), schedule_.edges.end(), edge);
    const auto number = static_cast<std::size_t>(known - schedule_.edges.begin());
    return transfers_[2 * (number * static_cast<std::size_t>(schedule_.microbatches) +
                           static_cast<std::size_t>(microbatch)) +
                      (gradient ? 1 : 0)];
  }

  void check_shape() {
    const int ranks = static_cast<int>(schedule_.ranks.size());
    for (int stage = 0; stage < schedule_.stages(); ++stage) {
      const std::vector<int>& replicas = schedule_.placement[static_cast<std::size_t>(stage)];
      if (replicas.empty()) fail("stage " + std::to_string(stage) + " is on no rank, expected at least one");
      for (const int rank : replicas)
        if (rank < 0 || rank >= ranks)
          fail("stage " + std::to_string(stage) + " is on rank " + std::to_string(rank) +
               ", expected one of " + std::to_string(ranks) + " ranks");
    }
    if (!std::is_sorted(schedule_.edges.begin(), schedule_.edges.end(), std::less_equal<>()))
      fail("the edges are not ascending, expected each of them once, ordered by their stages");
    for (const Edge edge : schedule_.edges)
      if (edge.from < 0 || edge.from >= edge.to || edge.to >= schedule_.stages())
        fail("edge from stage " + std::to_string(edge.from) + " to " + std::to_string(edge.to) +
             ", expected a later one of " + std::to_string(schedule_.stages()) + " stages");
    Node next = 0;
    for (std::size_t rank = 0; rank < schedule_.ranks.size(); ++rank) {
      result_.first_.push_back(next);
      next += static_cast<Node>(schedule_.ranks[rank].size());
      result_.rank_of_.resize(next, static_cast<int>(rank));
    }
    const std::size_t places = place(schedule_.stages(), 0);
    transfers_.resize(2 * schedule_.edges.size() * static_cast<std::size_t>(schedule_.microbatches));
    for (std::vector<Node>* table : {&forward_, &backward_, &weight_, &recompute_})
      table->assign(places, none);
  }

  void note(Node node, const Action& action) {
    if (action.op == Op::idle) return;
    if (action.stage < 0 || action.stage >= schedule_.stages())
      fail(node, "stage " + std::to_string(action.stage) + ", expected 0 to " +
                     std::to_string(schedule_.stages() - 1));
    const bool along = is_send(action.op) || is_receive(action.op) || is_wait_send(action.op);
    if (!is_computation(action.op) && !along) {
      const std::vector<int>& replicas = schedule_.placement[static_cast<std::size_t>(action.stage)];
      if (std::find(replicas.begin(), replicas.end(), result_.rank(node)) == replicas.end()) {
        std::string ranks;
        for (const int rank : replicas) ranks += (ranks.empty() ? "" : " or ") + std::to_string(rank);
        fail(node, "stage " + std::to_string(action.stage) +
                       " is not on this rank, expected its action on rank " + ranks);
      }
      return;
    }
    if (action.microbatch < 0 || action.microbatch >= schedule_.microbatches)
      fail(node, "micro-batch " + std::to_string(action.microbatch) + ", expected 0 to " +
                     std::to_string(schedule_.microbatches - 1));
    const int rank = schedule_.rank_of(action.stage, action.microbatch);
    if (rank != result_.rank(node))
      fail(node, "found on this rank, expected on rank " + std::to_string(rank) +
                     ", which computes this micro-batch of the stage");
    along ? note_message(node, action) : note_computation(node, action);
  }

  void note_computation(Node node, const Action& action) {
    const std::size_t at = place(action.stage, action.microbatch);
    const auto once = [&](std::vector<Node>& table) {
      if (table[at] != none) fail(node, "repeats " + result_.describe(table[at]) + ", expected it once");
      table[at] = node;
    };
    switch (action.op) {
      case Op::forward:
        return once(forward_);
      case Op::recompute:
        return once(recompute_);
      case Op::input_gradient:
        return once(backward_);
      case Op::weight_gradient:
        return once(weight_);
      default:  // a full backward
        once(backward_);
        once(weight_);
    }
  }

  void note_message(Node node, const Action& action) {
    const bool gradient = carries_gradient(action.op);
    if (!std::binary_search(schedule_.edges.begin(), schedule_.edges.end(), action.edge))
      fail(node, "the edge from stage " + std::to_string(action.edge.from) + " to " +
                     std::to_string(action.edge.to) +
                     " is not in the graph of the stages, expected one of its " +
                     std::to_string(schedule_.edges.size()) + " edges");
    result_.has_messages_ = true;
    if (schedule_.rank_of(action.edge.from, action.microbatch) ==
        schedule_.rank_of(action.edge.to, action.microbatch))
      fail(node, "both stages of the edge are on this rank, expected no message");
    if (is_wait_send(action.op)) return;
    Transfer& transfer = transfer_of(action.edge, action.microbatch, gradient);
    Node& half = is_send(action.op) ? transfer.send : transfer.receive;
    if (half != none) fail(node, "repeats " + result_.describe(half) + ", expected it once");
    half = node;
  }

  // Checks that each micro-batch is computed on each stage: forward, and backward unless the schedule has no
  // backward.
  void check_complete() {
    const auto present = [](const std::vector<Node>& table) {
      return std::any_of(table.begin(), table.end(), [](Node node) { return node != none; });
    };
    trains_ = present(backward_) || present(weight_);
    for (int i = 0; i < schedule_.microbatches; ++i)
      for (int stage = 0; stage < schedule_.stages(); ++stage) {
        const std::size_t at = place(stage, i);
        const auto expect = [&](const std::vector<Node>& table, const char* what) {
          if (table[at] == none)
            fail("rank " + std::to_string(schedule_.rank_of(stage, i)) + ": no " + what + " of stage " +
                 std::to_string(stage) + ", micro-batch " + std::to_string(i) + ", expected one");
        };
        expect(forward_, "forward");
        if (!trains_) continue;
        expect(backward_, "input gradient");
        expect(weight_, "weight gradient");
        in_order(forward_[at], backward_[at]);
        in_order(backward_[at], weight_[at]);
        if (recompute_[at] == none) continue;
        in_order(forward_[at], recompute_[at]);
        in_order(recompute_[at], backward_[at]);
      }
  }

  // first, second: nodes of one rank.
  void in_order(Node first, Node second) const {
    if (first > second) fail(second, "precedes " + result_.describe(first) + ", expected it later");
  }

  Node producer(const Edge& edge, int microbatch, bool gradient) const {
    return gradient ? backward_[place(edge.to, microbatch)] : forward_[place(edge.from, microbatch)];
  }
  Node consumer(const Edge& edge, int microbatch, bool gradient) const {
    return gradient ? backward_[place(edge.from, microbatch)] : forward_[place(edge.to, microbatch)];
  }

  void check_messages() {
    for (const Edge edge : schedule_.edges)
      for (int i = 0; i < schedule_.microbatches; ++i)
        for (const bool gradient : {false, true}) check_transfer(edge, i, gradient);
  }

  void check_transfer(const Edge& edge, int microbatch, bool gradient) {
    const int from = schedule_.rank_of(gradient ? edge.to : edge.from, microbatch);
    const int to = schedule_.rank_of(gradient ? edge.from : edge.to, microbatch);
    if (from == to) return;
    const Transfer& transfer = transfer_of(edge, microbatch, gradient);
    if (gradient && !trains_) {
      if (transfer.send != none)
        fail(transfer.send, "a gradient in a schedule without a backward, expected none");
      return;
    }
    const auto missing = [&](int rank, Op op) {
      fail("rank " + std::to_string(rank) + ": no " + to_string(message(op, microbatch, edge)) +
           ", expected one");
    };
    if (transfer.send == none) missing(from, gradient ? Op::send_gradient : Op::send_activation);
    if (transfer.receive == none) missing(to, gradient ? Op::receive_gradient : Op::receive_activation);
    in_order(producer(edge, microbatch, gradient), transfer.send);
    in_order(transfer.receive, consumer(edge, microbatch, gradient));
  }

  void add(Node before, Node after) { links_.emplace_back(before, after); }

  void connect(Node node, const Action& action) {
    if (action.op == Op::weight_gradient) add(backward_[place(action.stage, action.microbatch)], node);
    if (is_wait_send(action.op)) waits_.emplace_back(node, action);
  }

  void connect_messages() {
    for (const Edge edge : schedule_.edges)
      for (int i = 0; i < schedule_.microbatches; ++i)
        for (const bool gradient : {false, true}) {
          if (gradient && !trains_) continue;
          const int from = schedule_.rank_of(gradient ? edge.to : edge.from, i);
          const int to = schedule_.rank_of(gradient ? edge.from : edge.to, i);
          const Node made = producer(edge, i, gradient), used = consumer(edge, i, gradient);
          if (from == to) {
            if (made == used)
              fail(made, "one part of the pair waits for the other, expected independent computations");
            add(made, used);
            continue;
          }
          const Node node = static_cast<Node>(result_.actions() + result_.messages_.size());
          result_.messages_.push_back({edge, i, gradient, from, to});
          Transfer& transfer = transfer_of(edge, i, gradient);
          transfer.message = node;
          add(result_.has_messages_ ? transfer.send : made, node);
          if (result_.has_messages_) add(transfer.receive, node);
          add(node, used);
        }
    for (const auto& [node, action] : waits_) {
      const bool gradient = carries_gradient(action.op);
      const Transfer& transfer = transfer_of(action.edge, action.microbatch, gradient);
      if (transfer.send == none)
        fail(node, "the schedule does not send this value, expected a send before the wait");
      in_order(transfer.send, node);
      add(transfer.message, node);
    }
  }

  // The reductions of a stage are collectives over its replicas: the n-th one of all replicas is one message.
  void connect_reductions() {
    std::map<std::pair<int, int>, std::vector<Node>> starts, ends;  // (stage, rank)
    for_each([&](Node node, const Action& action) {
      if (action.op == Op::reduce_gradient) starts[{action.stage, result_.rank(node)}].push_back(node);
      if (action.op == Op::wait_reduce_gradient) ends[{action.stage, result_.rank(node)}].push_back(node);
    });
    for (int stage = 0; stage < schedule_.stages(); ++stage) {
      const std::vector<int>& replicas = schedule_.placement[static_cast<std::size_t>(stage)];
      const std::size_t rounds = starts[{stage, replicas.front()}].size();
      for (const int rank : replicas) {
        const std::size_t own = starts[{stage, rank}].size(), waits = ends[{stage, rank}].size();
        if (own != rounds || waits > rounds)
          fail("stage " + std::to_string(stage) + ": rank " + std::to_string(rank) + " starts " +
               std::to_string(own) + " reductions and waits for " + std::to_string(waits) + ", expected " +
               std::to_string(rounds) + " as on rank " + std::to_string(replicas.front()));
      }
      for (std::size_t round = 0; round < rounds; ++round) {
        const Node node = static_cast<Node>(result_.actions() + result_.messages_.size());
        result_.messages_.push_back(
            {{stage, stage}, static_cast<int>(round), true, replicas.front(), replicas.front()});
        for (const int rank : replicas) {
          add(starts[{stage, rank}][round], node);
          if (round < ends[{stage, rank}].size()) add(node, ends[{stage, rank}][round]);
        }
      }
    }
  }

  void finish() {
    const std::size_t nodes = result_.actions() + result_.messages_.size();
    result_.predecessors_.assign(nodes, 0);
    result_.begins_.assign(nodes + 1, 0);
    for (const auto& [before, after] : links_) {
      ++result_.predecessors_[after];
      ++result_.begins_[before + 1];
    }
    for (std::size_t i = 0; i < nodes; ++i) result_.begins_[i + 1] += result_.begins_[i];
    result_.successors_.resize(links_.size());
    std::vector<std::uint32_t> next(result_.begins_.begin(), result_.begins_.end() - 1);
    for (const auto& [before, after] : links_) result_.successors_[next[before]++] = after;
  }

  Dependencies& result_;
  const Schedule& schedule_;
  const std::string& operation_;
  bool trains_ = false;
  // By stage and micro-batch. A full backward is in both tables.
  std::vector<Node> forward_, backward_, weight_, recompute_;
  std::vector<Transfer> transfers_;  // by edge, micro-batch and direction
  std::vector<std::pair<Node, Action>> waits_;
  std::vector<std::pair<Node, Node>> links_;
};

Dependencies::Dependencies(const Schedule& schedule, const std::string& operation) : schedule_(schedule) {
  Builder(*this, operation).build();
}

std::string Dependencies::describe(Node node) const {
  if (!is_message(node))
    return "rank " + std::to_string(rank(node)) + ", action " + std::to_string(index(node)) + " (" +
           to_string(action(node)) + ')';
  const EdgeMessage& each = message_of(node);
  if (each.reduction())
    return "reduction " + std::to_string(each.microbatch) + " of stage " + std::to_string(each.edge.from);
  return "message " + to_string(message(each.gradient ? Op::send_gradient : Op::send_activation,
                                        each.microbatch, each.edge));
}

std::string Dependencies::describe_cycle(const std::vector<bool>& completed) const {
  // Each node that did not complete waits for another such node. To find a cycle, walk back until a node
  // repeats.
  std::vector<Node> waits_for(nodes(), none);
  Node start = none;
  for (Node node = 0; node < nodes(); ++node) {
    if (completed[node]) continue;
    start = node;
    for_each_successor(node, [&](Node after) { waits_for[after] = node; });
  }
  std::vector<bool> seen(nodes());
  while (!seen[start]) {
    seen[start] = true;
    start = waits_for[start];
  }
  std::string text = describe(start);
  for (Node node = waits_for[start];; node = waits_for[node]) {
    text += " waits for " + describe(node);
    if (node == start) return text;
  }
}

}  // namespace weft::schedule
