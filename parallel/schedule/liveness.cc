#include <weft/parallel/schedule/liveness.h>

#include <weft/parallel/schedule/internal/dependencies.h>
#include <weft/parallel/schedule/validate.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace weft::schedule {
namespace {

// The lifetimes of one rank, found in one pass over its list.
class RankReader {
 public:
  RankLiveness read(const std::vector<Action>& actions) {
    for (std::size_t i = 0; i < actions.size(); ++i)
      for_each_part(actions[i], [&](const Action& action) { note(i, action); });
    assign_slots();
    return {std::move(lifetimes_)};
  }

 private:
  using Key = std::tuple<Held, int, int, Edge>;  // kind, stage, micro-batch or version, edge

  void begin(Held held, int stage, int number, std::size_t at, Edge edge = {}) {
    open_[{held, stage, number, edge}] = lifetimes_.size();
    lifetimes_.push_back({held, stage, number, edge, at, at, 0});
  }
  // A value may be extended several times: the last extension counts.
  void extend(Held held, int stage, int number, std::size_t at, Edge edge = {}) {
    const auto known = open_.find({held, stage, number, edge});
    if (known != open_.end()) lifetimes_[known->second].last = at;
  }
  void receive(Held held, const Action& action, std::size_t at) {
    received_[{held, action.stage, action.microbatch}].push_back(action.edge);
    begin(held, action.stage, action.microbatch, at, action.edge);
  }
  void use_received(Held held, const Action& action, std::size_t at) {
    for (const Edge& edge : received_[{held, action.stage, action.microbatch}])
      extend(held, action.stage, action.microbatch, at, edge);
  }

  void note(std::size_t at, const Action& action) {
    const int stage = action.stage, number = action.microbatch;
    if (is_computation(action.op)) {
      const auto loaded = loaded_.find(stage);
      if (loaded != loaded_.end()) extend(Held::weights, stage, loaded->second, at);
    }
    switch (action.op) {
      case Op::forward:
        begin(Held::activation, stage, number, at);
        made_[{false, stage, number}] = at;
        use_received(Held::received_activation, action, at);
        return;
      case Op::input_gradient:
      case Op::backward:
        extend(Held::activation, stage, number, at);
        made_[{true, stage, number}] = at;
        use_received(Held::received_gradient, action, at);
        return;
      case Op::weight_gradient:
        return extend(Held::activation, stage, number, at);
      case Op::receive_activation:
        return receive(Held::received_activation, action, at);
      case Op::receive_gradient:
        return receive(Held::received_gradient, action, at);
      case Op::send_activation:
      case Op::send_gradient: {
        const bool gradient = action.op == Op::send_gradient;
        const Held held = gradient ? Held::sent_gradient : Held::sent_activation;
        begin(held, stage, number, made_[{gradient, stage, number}], action.edge);
        return extend(held, stage, number, at, action.edge);
      }
      case Op::wait_send_activation:
        return extend(Held::sent_activation, stage, number, at, action.edge);
      case Op::wait_send_gradient:
        return extend(Held::sent_gradient, stage, number, at, action.edge);
      case Op::stash:
        return begin(Held::weights, stage, action.version, at);
      case Op::load:
        loaded_[stage] = action.version;
        return;
      case Op::optimizer_step:
        loaded_.erase(stage);
        return;
      default:
        return;
    }
  }

  // Gives each value the lowest free slot. So the number of slots is the maximum number of values at one
  // time.
  void assign_slots() {
    std::stable_sort(lifetimes_.begin(), lifetimes_.end(),
                     [](const Lifetime& a, const Lifetime& b) { return a.first < b.first; });
    std::map<std::tuple<Held, int, Edge>, std::vector<std::size_t>> ends;  // of each slot: its last action
    for (Lifetime& each : lifetimes_) {
      std::vector<std::size_t>& slots = ends[{each.held, each.stage, each.edge}];
      const auto free =
          std::find_if(slots.begin(), slots.end(), [&](std::size_t end) { return end < each.first; });
      each.slot = static_cast<int>(free - slots.begin());
      if (free == slots.end()) slots.push_back(each.last);
      slots[static_cast<std::size_t>(each.slot)] = each.last;
    }
  }

  std::vector<Lifetime> lifetimes_;
  std::map<Key, std::size_t> open_;  // into lifetimes_
  std::map<std::tuple<Held, int, int>, std::vector<Edge>> received_;
  std::map<std::tuple<bool, int, int>, std::size_t> made_;  // gradient, stage, micro-batch: the computation
  std::map<int, int> loaded_;                               // of a stage: the version that is not the latest
};

}  // namespace

int RankLiveness::slots(Held held) const {
  std::map<std::pair<int, Edge>, int> most;
  for (const Lifetime& each : lifetimes)
    if (each.held == held) {
      int& known = most[{each.stage, each.edge}];
      known = std::max(known, each.slot + 1);
    }
  int sum = 0;
  for (const auto& [place, slots] : most) sum += slots;
  return sum;
}

int RankLiveness::slots(Held held, Edge edge) const {
  int most = 0;
  for (const Lifetime& each : lifetimes)
    if (each.held == held && each.edge == edge) most = std::max(most, each.slot + 1);
  return most;
}

Liveness liveness(const Schedule& schedule) {
  validate(schedule);
  Liveness result;
  for (const std::vector<Action>& actions : schedule.ranks)
    result.ranks.push_back(RankReader().read(actions));
  return result;
}

}  // namespace weft::schedule
