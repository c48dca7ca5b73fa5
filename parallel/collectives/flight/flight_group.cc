#include <weft/parallel/collectives/flight/flight_group.h>

#include <algorithm>
#include <tuple>
#include <utility>

namespace weft::collectives {
namespace {

using GroupKey = std::pair<std::uint64_t, std::uint64_t>;

FlightGroup group_of(const std::vector<const FlightDump*>& dumps) {
  FlightGroup group;
  group.label = dumps.front()->group;
  group.members = dumps.front()->members;
  group.dumps.resize(group.members.size());
  group.by_ordinal.resize(group.members.size());
  group.open.resize(group.members.size());
  for (const FlightDump* dump : dumps) {
    const FlightDump*& place = group.dumps[static_cast<std::size_t>(dump->rank)];
    if (place == nullptr || place->records.taken < dump->records.taken) place = dump;
  }
  std::map<FlightOrdinal, const std::string*> meant;
  for (std::size_t rank = 0; rank < group.dumps.size(); ++rank) {
    if (group.dumps[rank] == nullptr) continue;
    for (const FlightEntry& entry : group.dumps[rank]->records.entries) {
      if (entry.is_message()) continue;
      group.by_ordinal[rank][ordinal_of(entry)] = &entry;
      const auto [first, is_first] = meant.emplace(ordinal_of(entry), &entry.text);
      if (!is_first && *first->second != entry.text) group.mismatches.insert(ordinal_of(entry));
    }
  }
  for (std::size_t rank = 0; rank < group.dumps.size(); ++rank) {
    for (const auto& [ordinal, entry] : group.by_ordinal[rank])
      if (entry->is_open() && !group.mismatches.contains(ordinal)) group.open[rank].push_back(entry);
    if (group.dumps[rank] == nullptr) continue;
    for (const FlightEntry& entry : group.dumps[rank]->records.entries)
      if (entry.is_message() && entry.is_open()) group.open[rank].push_back(&entry);
  }
  return group;
}

// Compares each operation of the rank `ahead`, from `ordinal` on, with the next operation of the rank
// `behind`. Returns the number of comparisons; nullopt: two of these operations differ.
std::optional<std::size_t> shifted(const FlightGroup& group, int ahead, int behind, FlightOrdinal ordinal,
                                   const SameFlight& same) {
  const auto& first = group.by_ordinal[static_cast<std::size_t>(ahead)];
  const auto end = ordinal < first_round ? first.lower_bound(first_round) : first.end();
  std::size_t compared = 0;
  for (auto at = first.lower_bound(ordinal); at != end; ++at) {
    const FlightEntry* const other = group.entry(behind, at->first + 1);
    if (other == nullptr) continue;
    if (!same(*at->second, *other)) return std::nullopt;
    ++compared;
  }
  return compared;
}

}  // namespace

const FlightEntry* FlightGroup::entry(int rank, FlightOrdinal ordinal) const {
  const auto& of_rank = by_ordinal[static_cast<std::size_t>(rank)];
  const auto found = of_rank.find(ordinal);
  return found == of_rank.end() ? nullptr : found->second;
}

bool FlightGroup::has_begun(int rank, FlightOrdinal ordinal) const {
  if (dump(rank) == nullptr) return false;
  const FlightRecords& records = dump(rank)->records;
  return ordinal < first_round ? ordinal < records.begun : ordinal - first_round < records.begun_values;
}

std::vector<int> FlightGroup::without_dump() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < size(); ++rank)
    if (dump(rank) == nullptr) ranks.push_back(rank);
  return ranks;
}

std::vector<int> FlightGroup::with_dump() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < size(); ++rank)
    if (dump(rank) != nullptr) ranks.push_back(rank);
  return ranks;
}

std::string FlightGroup::describe(int rank) const {
  return "rank " + std::to_string(rank) + " (" + members[static_cast<std::size_t>(rank)] + ")";
}

std::string FlightGroup::describe(const std::vector<int>& ranks) const {
  if (ranks.size() == 1) return describe(ranks.front());
  std::string text = "ranks ";
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (last - i < 2) last = i;  // if there are only two, each is named
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
    if (last != i) text += "-" + std::to_string(ranks[last]);
    i = last + 1;
  }
  return text;
}

std::vector<FlightGroup> flight_groups(const std::vector<FlightDump>& dumps,
                                       std::vector<std::string>& notes) {
  // Dumps that list different members belong to different groups.
  std::map<std::tuple<std::string, std::vector<std::string>, GroupKey>, std::vector<const FlightDump*>> found;
  for (const FlightDump& dump : dumps)
    found[{dump.group, dump.members, {dump.origin, dump.number}}].push_back(&dump);

  // For each name and list of members: the time of the last dump, and the incarnation of rank 0 in that dump.
  std::map<std::pair<std::string, std::vector<std::string>>, std::pair<std::int64_t, std::uint64_t>> last;
  for (const FlightDump& dump : dumps) {
    auto& latest = last[{dump.group, dump.members}];
    latest = std::max(latest, {dump.records.taken, dump.origin});
  }
  std::map<std::string, std::size_t> outdated;
  std::vector<FlightGroup> groups;
  for (const auto& [key, of_group] : found) {
    const auto& [name, members, id] = key;
    if (last[{name, members}].second != id.first) {
      outdated[name] += of_group.size();
      continue;
    }
    groups.push_back(group_of(of_group));
  }
  for (const auto& [name, count] : outdated)
    notes.push_back("left out: " + std::to_string(count) + (count == 1 ? " dump" : " dumps") + " of group '" +
                    name + "' from an earlier run");

  const auto tell_apart = [&groups](auto suffix) {
    std::map<std::string, std::size_t> labels;
    for (const FlightGroup& group : groups) ++labels[group.label];
    for (FlightGroup& group : groups)
      if (labels[group.label] > 1) group.label += suffix(group, *group.dump(group.with_dump().front()));
  };
  tell_apart([](const FlightGroup& group, const FlightDump& dump) {
    return "@" + group.members.front() + "." + std::to_string(dump.number);
  });
  tell_apart([](const FlightGroup&, const FlightDump& dump) { return "@" + std::to_string(dump.origin); });
  return groups;
}

FlightShift flight_shift(const FlightGroup& group, int rank, int other, FlightOrdinal ordinal,
                         const SameFlight& same) {
  const auto ahead =
      shifted(group, rank, other, ordinal, same);  // the rank's operations are the other rank's next ones
  const auto behind =
      shifted(group, other, rank, ordinal, same);  // the other rank's operations are the rank's next ones
  // If two kinds of calls alternate, two swapped calls look like a call that was left out, unless a third
  // call is compared.
  if (ahead.value_or(0) >= 2) return FlightShift::left_out;
  if (behind.value_or(0) >= 2) return FlightShift::one_more;
  const FlightEntry* const mine[] = {group.entry(rank, ordinal), group.entry(rank, ordinal + 1)};
  const FlightEntry* const theirs[] = {group.entry(other, ordinal), group.entry(other, ordinal + 1)};
  const bool all = mine[0] != nullptr && mine[1] != nullptr && theirs[0] != nullptr && theirs[1] != nullptr;
  if (all && same(*mine[0], *theirs[1]) && same(*mine[1], *theirs[0])) return FlightShift::swapped;
  if (ahead.value_or(0) == 1) return FlightShift::left_out;
  if (behind.value_or(0) == 1) return FlightShift::one_more;
  return FlightShift::none;
}

}  // namespace weft::collectives
