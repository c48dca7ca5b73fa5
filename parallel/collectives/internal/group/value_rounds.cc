#include <weft/parallel/collectives/internal/group/value_rounds.h>

#include <weft/rpc/codec/packed.h>

#include <algorithm>
#include <utility>

namespace weft::collectives {

void ValueRounds::give(int from, const RoundKey& key, Value value) {
  Round& round = rounds_[key];
  round.insert_or_assign(from, std::move(value));
  if (static_cast<int>(round.size()) == ranks_) end(key, std::move(rounds_.extract(key).mapped()));
}

void ValueRounds::end(const RoundKey& key, Round round) {
  const bool same = std::all_of(round.begin(), round.end(), [&](const auto& entry) {
    return entry.second.meaning == round.begin()->second.meaning;
  });
  if (!same) {
    std::map<int, std::string> texts;
    for (const auto& [rank, value] : round) texts[rank] = value.meaning + " at " + value.site;
    const rpc::Error error = difference_(texts);
    for (auto& [rank, value] : round) value.answer(std::make_exception_ptr(error));
    return;
  }
  Values all;
  if (key.launch.empty())
    for (const auto& [rank, value] : round) all.push_back(value.bytes);
  else
    all.push_back(rpc::pack(launches_++));
  for (auto& [rank, value] : round) value.answer(value.wants_all ? all : Values{});
}

void ValueRounds::fail(const rpc::Error& error) {
  for (auto& [key, round] : std::exchange(rounds_, {}))
    for (auto& [rank, value] : round) value.answer(std::make_exception_ptr(error));
}

std::optional<rpc::Clock::time_point> ValueRounds::next_deadline() const {
  std::optional<rpc::Clock::time_point> next;
  for (const auto& [key, round] : rounds_)
    for (const auto& [rank, value] : round) next = next ? std::min(*next, value.deadline) : value.deadline;
  return next;
}

std::optional<ValueRounds::Overdue> ValueRounds::overdue(rpc::Clock::time_point now) const {
  for (const auto& [key, round] : rounds_)
    for (const auto& [rank, value] : round) {
      if (value.deadline > now) continue;
      Overdue overdue{value.meaning + " at " + value.site, {}};
      for (int other = 0; other < ranks_; ++other)
        if (!round.contains(other)) overdue.missing.push_back(other);
      return overdue;
    }
  return std::nullopt;
}

bool ValueRounds::awaits(int rank) const {
  return std::any_of(rounds_.begin(), rounds_.end(),
                     [&](const auto& entry) { return !entry.second.contains(rank); });
}

}  // namespace weft::collectives
