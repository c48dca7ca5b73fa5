#include <weft/parallel/schedule/text.h>

#include <weft/parallel/schedule/internal/refuse.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <map>
#include <set>

namespace weft::schedule {
namespace {

constexpr int max_number = 1'000'000;  // of stages, micro-batches and versions: larger ones are mistakes

// Reads one cell. Columns are counted in the line.
class CellReader {
 public:
  CellReader(std::string_view line, std::size_t begin, std::size_t end, std::string where)
      : text_(line.substr(0, end)), at_(begin), where_(std::move(where)) {
    skip_spaces();
  }

  Action read() {
    if (at_ == text_.size()) return {};
    const Action action = text_[at_] == '(' ? overlap() : single();
    skip_spaces();
    if (at_ != text_.size()) fail("expected ',' or the end of the line");
    return action;
  }

 private:
  [[noreturn]] void fail(const std::string& expected) const {
    const std::string found =
        at_ < text_.size() ? "'" + std::string(1, text_[at_]) + "'" : "the end of the cell";
    refuse("load", where_ + ':' + std::to_string(at_ + 1) + ": found " + found + ", " + expected);
  }

  void skip_spaces() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\r')) ++at_;
  }
  bool take(char wanted) {
    if (at_ == text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }
  bool at_digit() const { return at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; }

  int number(const char* what) {
    if (!at_digit()) fail(std::string("expected the number of ") + what);
    int value = 0;
    const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
    if (error != std::errc() || value > max_number)
      fail(std::string("expected a number of ") + what + " of at most " + std::to_string(max_number));
    at_ = static_cast<std::size_t>(end - text_.data());
    return value;
  }

  Op op() {
    const std::size_t start = at_;
    while (at_ < text_.size() && ((text_[at_] >= 'A' && text_[at_] <= 'Z') || text_[at_] == '_')) ++at_;
    const std::string_view name = text_.substr(start, at_ - start);
    for (int op = 1; op < op_count; ++op)
      if (name_of(static_cast<Op>(op)) == name) return static_cast<Op>(op);
    at_ = start;
    if (name.empty()) fail("expected the name of an action, such as F or SEND_F");
    refuse("load", where_ + ':' + std::to_string(at_ + 1) + ": unknown action '" + std::string(name) +
                       "', expected a name such as F, B or SEND_F");
  }

  Action single() {
    Action action;
    action.stage = number("a stage");
    action.op = op();
    if (action.op == Op::overlap) fail("expected parts in parentheses before OVERLAP_F_B");
    const bool message = is_send(action.op) || is_receive(action.op) || is_wait_send(action.op);
    if (is_computation(action.op) || message) {
      action.microbatch = number("a micro-batch");
    } else if (at_digit()) {
      fail("expected no micro-batch after " + std::string(name_of(action.op)));
    }
    if (message) action.edge = edge(action);
    if (take('@')) action.version = number("a version");
    if (action.version < 0 && (action.op == Op::stash || action.op == Op::load))
      fail("expected '@' and a version of the weights");
    return action;
  }

  Edge edge(const Action& action) {
    const bool starts = message(action.op, 0, {0, 1}).stage == 0;
    int peer = action.stage + (starts ? 1 : -1);
    if (take(':')) peer = number("a stage");
    if (peer < 0) fail("expected ':' and the other stage, because no stage is before stage 0");
    const Edge edge = starts ? Edge{action.stage, peer} : Edge{peer, action.stage};
    if (edge.from >= edge.to)
      fail("expected an edge to a later stage, not from " + std::to_string(edge.from) + " to " +
           std::to_string(edge.to));
    return edge;
  }

  Action overlap() {
    Action action{.op = Op::overlap};
    do {
      ++at_;  // ( or ;
      skip_spaces();
      action.parts.push_back(single());
      if (!is_computation(action.parts.back().op)) fail("expected computations as parts of OVERLAP_F_B");
      skip_spaces();
    } while (at_ < text_.size() && text_[at_] == ';');
    if (!take(')')) fail("expected ';' or ')'");
    if (op() != Op::overlap) fail("expected OVERLAP_F_B after the parts");
    return action;
  }

  std::string_view text_;
  std::size_t at_;
  std::string where_;  // "source:line"
};

// `begin` to `end` without the quotes that other programs write around cells.
std::pair<std::size_t, std::size_t> unquoted(std::string_view line, std::size_t begin, std::size_t end) {
  std::size_t first = begin, last = end;
  while (first < last && line[first] == ' ') ++first;
  while (first < last && line[last - 1] == ' ') --last;
  if (last - first >= 2 && line[first] == '"' && line[last - 1] == '"') return {first + 1, last - 1};
  return {begin, end};
}

std::vector<Action> load_rank(std::string_view line, const std::string& where) {
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  std::vector<Action> actions;
  if (line.empty()) return actions;
  for (std::size_t begin = 0; begin <= line.size();) {
    const std::size_t comma = std::min(line.find(',', begin), line.size());
    const auto [first, last] = unquoted(line, begin, comma);
    actions.push_back(CellReader(line, first, last, where).read());
    begin = comma + 1;
  }
  return actions;
}

// Derives the sizes, the placement and the edges from the actions.
void infer(Schedule& schedule, std::string_view source) {
  constexpr int computes_none = std::numeric_limits<int>::max();
  std::map<int, std::set<std::pair<int, int>>> places;  // stage -> (first micro-batch on a rank, the rank)
  std::set<Edge> edges;
  int stages = 0;
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    std::map<int, int> first;  // stage -> micro-batch
    for (const Action& each : schedule.ranks[rank])
      for_each_part(each, [&](const Action& action) {
        stages = std::max({stages, action.stage + 1, action.edge.to + 1});
        schedule.microbatches = std::max(schedule.microbatches, action.microbatch + 1);
        if (action.edge.from >= 0) edges.insert(action.edge);
        if (action.op == Op::idle) return;
        int& known = first.emplace(action.stage, computes_none).first->second;
        if (is_computation(action.op)) known = std::min(known, action.microbatch);
      });
    for (const auto& [stage, microbatch] : first) places[stage].emplace(microbatch, static_cast<int>(rank));
  }
  for (int stage = 0; stage < stages; ++stage) {
    std::vector<int>& replicas = schedule.placement.emplace_back();
    int before = -1;
    for (const auto& [microbatch, rank] : places[stage]) {
      if (microbatch == before && microbatch != computes_none)
        refuse("load", std::string(source) + ": ranks " + std::to_string(replicas.back()) + " and " +
                           std::to_string(rank) + " both compute micro-batch " + std::to_string(microbatch) +
                           " of stage " + std::to_string(stage) + ", expected one of them");
      before = microbatch;
      replicas.push_back(rank);
    }
    if (before == -1 || places[stage].begin()->first == computes_none)
      refuse("load", std::string(source) + ": no rank computes stage " + std::to_string(stage) + " of " +
                         std::to_string(stages) + ", expected at least one");
  }
  for (const Edge edge : chain(stages)) edges.insert(edge);
  schedule.edges.assign(edges.begin(), edges.end());
}

}  // namespace

std::string save(const Schedule& schedule) {
  std::string text;
  for (const std::vector<Action>& actions : schedule.ranks) {
    for (std::size_t i = 0; i < actions.size(); ++i) {
      if (i > 0) text += ',';
      text += to_string(actions[i]);
    }
    text += '\n';
  }
  return text;
}

Schedule load(std::string_view text, std::string_view source) {
  Schedule schedule;
  int number = 0;
  while (!text.empty()) {
    ++number;
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.starts_with('#')) continue;
    schedule.ranks.push_back(load_rank(line, std::string(source) + ':' + std::to_string(number)));
  }
  if (schedule.ranks.empty()) refuse("load", std::string(source) + ": no lines, expected one for each rank");
  infer(schedule, source);
  return schedule;
}

}  // namespace weft::schedule
