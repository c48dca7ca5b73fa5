#include <weft/parallel/pipeline/internal/ties.h>

#include <algorithm>
#include <map>

namespace weft::pipeline {

std::vector<int> homes_of(const Tie& tie, const schedule::Schedule& schedule) {
  std::map<int, int> home_of;  // by rank
  for (const StageParameter& each : tie) {
    const auto home = home_of.try_emplace(schedule.rank_of(each.stage, 0), each.stage).first;
    home->second = std::min(home->second, each.stage);
  }
  std::vector<int> homes;
  for (const auto& [rank, home] : home_of) homes.push_back(home);
  std::sort(homes.begin(), homes.end());
  return homes;
}

ValueExchange::Key tie_message(const schedule::Schedule& schedule, std::size_t tie, int from, int to) {
  return {.edge = {std::min(from, to), std::max(from, to)},
          .microbatch = schedule.microbatches + static_cast<int>(tie),
          .gradient = from > to};
}

std::vector<ValueExchange::Key> tie_messages(const StageGraph& graph, const schedule::Schedule& schedule) {
  std::vector<ValueExchange::Key> messages;
  for (std::size_t tie = 0; tie < graph.ties().size(); ++tie) {
    const auto homes = homes_of(graph.ties()[tie], schedule);
    for (const int from : homes)
      for (const int to : homes)
        if (from != to) messages.push_back(tie_message(schedule, tie, from, to));
  }
  return messages;
}

std::size_t values_in(const ValueExchange::Key& message, const StageGraph& graph,
                      const schedule::Schedule& schedule) {
  return message.microbatch < schedule.microbatches ? graph.outputs_of(message.edge).size() : 1;
}

}  // namespace weft::pipeline
