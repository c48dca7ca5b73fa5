#include <weft/parallel/collectives/flight/flight_verdict.h>

#include <weft/parallel/collectives/flight/flight_waits.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <iterator>

namespace weft::collectives {
namespace {

using Kind = FlightFinding::Kind;

constexpr std::size_t max_lines = 16;           // of details with one line for each rank
constexpr std::size_t max_operations = 3;       // of one rank, in a line
constexpr std::size_t least_compared = 8;       // collectives, before a rank is reported as late
constexpr std::int64_t least_late = 1'000'000;  // nanoseconds

std::string time_text(std::int64_t nanoseconds) {
  const double seconds = static_cast<double>(std::max<std::int64_t>(nanoseconds, 0)) / 1e9;
  char text[40];
  if (seconds >= 1) {
    std::snprintf(text, sizeof text, "%.1f s", seconds);
  } else {
    std::snprintf(text, sizeof text, "%.1f ms", seconds * 1e3);
  }
  return text;
}

std::string counted(std::size_t count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

// Ranks that have the same line of text, and the longest time for which one of them has been in this state.
class RankActivities {
 public:
  void add(int rank, const std::string& text, std::optional<std::int64_t> time = {}) {
    for (Activity& activity : activities_) {
      if (activity.text != text) continue;
      activity.ranks.push_back(rank);
      activity.time = std::max(activity.time, time);
      return;
    }
    activities_.push_back({text, {rank}, time});
  }
  std::vector<std::string> lines(const FlightGroup& group) const {
    std::vector<std::string> lines;
    for (const Activity& activity : activities_)
      lines.push_back(group.describe(activity.ranks) + ": " + activity.text +
                      (activity.time ? ", for " + time_text(*activity.time) : ""));
    return lines;
  }

 private:
  struct Activity {
    std::string text;
    std::vector<int> ranks;
    std::optional<std::int64_t> time;
  };
  std::vector<Activity> activities_;
};

class Judge {
 public:
  explicit Judge(const std::vector<FlightDump>& dumps) : groups_(flight_groups(dumps, verdict_.notes)) {
    waits_ = flight_waits(groups_);
    for (const FlightWait& wait : waits_)
      open_of_[wait.group->members[static_cast<std::size_t>(wait.rank)]].push_back(&wait);
  }

  FlightVerdict judge() && {
    for (const FlightCycle& cycle : flight_cycles(waits_)) report_cycle(cycle);
    for (const FlightGroup& group : groups_) {
      introduce(group);
      report_mismatch(group);
      const auto collective = first_open(group, FlightKind::collective);
      const auto round = first_open(group, FlightKind::values);
      report_without_dump(group, collective ? collective : round);
      if (collective) report_stuck(group, *collective);
      if (round) report_stuck(group, *round);
      report_messages(group);
      note_late(group);
    }
    return std::move(verdict_);
  }

 private:
  FlightFinding& add(Kind kind, const FlightGroup& group, std::vector<int> ranks, std::string text) {
    FlightFinding finding{
        .kind = kind, .group = group.label, .ranks = std::move(ranks), .text = std::move(text)};
    for (const int rank : finding.ranks)
      finding.members.push_back(group.members[static_cast<std::size_t>(rank)]);
    verdict_.findings.push_back(std::move(finding));
    return verdict_.findings.back();
  }

  void introduce(const FlightGroup& group) {
    FlightVerdict::Group overview{.label = group.label};
    const auto with = group.with_dump();
    overview.summary = counted(group.members.size(), "rank");
    if (with.size() < group.members.size()) overview.summary += ", dumps of " + std::to_string(with.size());
    std::uint64_t least = ~std::uint64_t{0}, most = 0;
    for (const int rank : with) {
      least = std::min(least, group.dump(rank)->records.begun);
      most = std::max(most, group.dump(rank)->records.begun);
    }
    overview.summary +=
        "; " +
        (least == most ? counted(most, "collective")
                       : std::to_string(least) + " to " + std::to_string(most) + " collectives") +
        " begun";
    for (const int rank : with) {
      const std::string& error = group.dump(rank)->error;
      if (!error.empty() &&
          std::find(overview.errors.begin(), overview.errors.end(), error) == overview.errors.end() &&
          overview.errors.size() < max_lines)
        overview.errors.push_back(error);
    }
    verdict_.groups.push_back(std::move(overview));
  }

  // --- The activity of a rank ---

  // Adds a line such as "in #3 barrier() at train.cc:12 of group 'B'"; if the rank is in no operation, its
  // last operation.
  void add_activity(RankActivities& activities, const FlightGroup& group, int rank) const {
    const auto open = open_of_.find(group.members[static_cast<std::size_t>(rank)]);
    if (open == open_of_.end()) return add_idle(activities, *group.dump(rank));
    std::vector<const FlightWait*> here = open->second;  // those of this group first
    std::stable_partition(here.begin(), here.end(),
                          [&](const FlightWait* wait) { return wait->group == &group; });
    std::string text;
    std::int64_t time = 0;
    for (std::size_t i = 0; i < here.size() && i < max_operations; ++i) {
      const FlightWait& wait = *here[i];
      text += (i == 0 ? "in " : "; in ") + wait.entry->what_and_where();
      if (wait.group != &group) text += " of group '" + wait.group->label + "'";
      time = std::max(time, wait.group->dump(wait.rank)->records.taken - wait.entry->begun);
    }
    if (here.size() > max_operations)
      text += "; in " + std::to_string(here.size() - max_operations) + " more";
    activities.add(rank, text, time);
  }

  static void add_idle(RankActivities& activities, const FlightDump& dump) {
    const auto& entries = dump.records.entries;
    const auto last = std::max_element(entries.begin(), entries.end(),
                                       [](const auto& a, const auto& b) { return a.number < b.number; });
    if (last == entries.end()) return activities.add(dump.rank, "has begun no operation");
    if (last->state != FlightState::done)  // if ranks have different signatures
      return activities.add(
          dump.rank, (last->state == FlightState::failed ? "failed in " : "in ") + last->what_and_where());
    activities.add(dump.rank, "done with " + last->what_and_where() + " and in no other operation",
                   dump.records.taken - last->ended);
  }

  std::vector<std::string> activities_of(const FlightGroup& group, const std::vector<int>& ranks) const {
    RankActivities activities;
    for (const int rank : ranks)
      if (group.dump(rank) != nullptr) add_activity(activities, group, rank);
    return activities.lines(group);
  }

  // --- Collectives ---

  // The first operation of this kind (collectives, or rounds of values) that is not complete.
  static std::optional<FlightOrdinal> first_open(const FlightGroup& group, FlightKind kind) {
    std::optional<FlightOrdinal> first;
    for (const FlightEntries& open : group.open) {
      const auto found = std::find_if(open.begin(), open.end(),
                                      [&](const FlightEntry* entry) { return entry->kind == kind; });
      if (found == open.end()) continue;
      first = std::min(first.value_or(ordinal_of(**found)), ordinal_of(**found));
    }
    return first;
  }

  static std::string number_of(FlightOrdinal ordinal) {
    return ordinal < first_round ? "#" + std::to_string(ordinal)
                                 : "values #" + std::to_string(ordinal - first_round);
  }
  static void set(FlightFinding& finding, FlightOrdinal ordinal) {
    if (ordinal < first_round) finding.sequence = ordinal;
    if (ordinal >= first_round) finding.round = ordinal - first_round;
  }

  static std::string shift_text(const FlightGroup& group, int rank, int other, FlightOrdinal ordinal,
                                FlightShift shift) {
    const FlightEntry* const own = group.entry(rank, ordinal);
    const FlightEntry* const theirs = group.entry(other, ordinal);
    const auto name = [](const FlightEntry& entry) {
      return entry.text + (entry.site.empty() ? "" : " at " + entry.site);
    };
    switch (shift) {
      case FlightShift::left_out:
        return group.describe(rank) + " seems to have left out " + name(*theirs);
      case FlightShift::one_more:
        return group.describe(rank) + " seems to have called one more, " + name(*own);
      case FlightShift::swapped:
        return group.describe(rank) + " seems to have called " + name(*theirs) + " and " +
               name(*group.entry(other, ordinal + 1)) + " in the other order";
      case FlightShift::none:
        break;
    }
    return "";
  }

  void report_mismatch(const FlightGroup& group) {
    if (group.mismatches.empty()) return;
    const FlightOrdinal ordinal = *group.mismatches.begin();
    std::map<std::string, std::vector<int>> meant;
    RankActivities activities;
    for (const int rank : group.with_dump()) {
      const FlightEntry* const entry = group.entry(rank, ordinal);
      if (!group.has_begun(rank, ordinal)) activities.add(rank, "has not begun it");
      if (entry == nullptr) continue;
      meant[entry->text].push_back(rank);
      activities.add(rank, entry->text + (entry->site.empty() ? "" : " at " + entry->site));
    }
    // The signature that most ranks have. If several signatures are equally frequent: that of the lowest
    // rank.
    const auto most = std::max_element(meant.begin(), meant.end(), [](const auto& a, const auto& b) {
      if (a.second.size() != b.second.size()) return a.second.size() < b.second.size();
      return a.second.front() > b.second.front();
    });
    std::vector<int> others;
    for (const auto& [text, ranks] : meant)
      if (text != most->first) others.insert(others.end(), ranks.begin(), ranks.end());
    std::sort(others.begin(), others.end());
    FlightFinding& finding =
        add(Kind::mismatch, group, others, number_of(ordinal) + ": the ranks call different operations");
    set(finding, ordinal);
    finding.details = activities.lines(group);
    const auto same = [](const FlightEntry& a, const FlightEntry& b) { return a.text == b.text; };
    for (std::size_t i = 0; i < others.size() && i < max_lines; ++i) {
      const int other = most->second.front();
      const FlightShift shift = flight_shift(group, others[i], other, ordinal, same);
      if (shift != FlightShift::none)
        finding.details.push_back(shift_text(group, others[i], other, ordinal, shift));
    }
    if (const std::size_t more = group.mismatches.size() - 1; more != 0)
      finding.details.push_back("and " + counted(more, "later one") + (more == 1 ? " differs" : " differ"));
  }

  void report_without_dump(const FlightGroup& group, const std::optional<FlightOrdinal>& stuck) {
    const auto silent = group.without_dump();
    if (silent.empty()) return;
    FlightFinding& finding = add(Kind::no_dump, group, silent,
                                 group.describe(silent) + (silent.size() == 1 ? " has" : " have") +
                                     " left no dump: dead, perhaps, or stopped before it could be written");
    if (!stuck) return;
    set(finding, *stuck);
    finding.details = activities_of(group, in(group, *stuck));
  }

  // The ranks that are in the operation.
  static std::vector<int> in(const FlightGroup& group, FlightOrdinal ordinal) {
    std::vector<int> ranks;
    for (int rank = 0; rank < group.size(); ++rank)
      if (const FlightEntry* entry = group.entry(rank, ordinal); entry != nullptr && entry->is_open())
        ranks.push_back(rank);
    return ranks;
  }

  void report_stuck(const FlightGroup& group, FlightOrdinal ordinal) {
    const auto inside = in(group, ordinal);
    const FlightEntry& entry = *group.entry(inside.front(), ordinal);
    std::vector<int> missing;
    for (const int rank : group.with_dump())
      if (!group.has_begun(rank, ordinal)) missing.push_back(rank);
    if (!missing.empty()) {
      FlightFinding& finding = add(Kind::missing, group, missing,
                                   entry.what() + ": " + group.describe(missing) +
                                       (missing.size() == 1 ? " has" : " have") + " not begun it");
      set(finding, ordinal);
      finding.details = activities_of(group, group.with_dump());
      for (std::size_t i = 0; i < missing.size() && i < max_lines && group.mismatches.empty(); ++i)
        if (auto hint = site_hint(group, missing[i], inside.front()); !hint.empty())
          finding.details.push_back(std::move(hint));
      return;
    }
    if (!group.without_dump().empty()) return;  // report_without_dump() reports it
    FlightFinding& finding = add(Kind::in_progress, group, inside,
                                 entry.what() + ": all ranks have begun it, " + group.describe(inside) +
                                     (inside.size() == 1 ? " is" : " are") + " not done");
    set(finding, ordinal);
    RankActivities activities;
    for (const int rank : group.with_dump()) {
      const FlightEntry* const own = group.entry(rank, ordinal);
      if (own == nullptr || !own->is_open()) {
        activities.add(rank, "done");
        continue;
      }
      std::string text = "in it" + (own->site.empty() ? "" : " at " + own->site);
      if (own->moved != 0) text += ", data moves";
      if (!own->waits_for.empty()) text += ", waits for " + group.describe(own->waits_for);
      activities.add(rank, text, group.dump(rank)->records.taken - own->begun);
    }
    finding.details = activities.lines(group);
    if (finding.details.size() > max_lines) {
      const std::size_t more = finding.details.size() - max_lines;
      finding.details.resize(max_lines);
      finding.details.push_back("and " + std::to_string(more) + " more");
    }
  }

  // Collectives with the same signature can only be distinguished by their source location.
  static std::string site_hint(const FlightGroup& group, int rank, int other) {
    const auto same = [](const FlightEntry& a, const FlightEntry& b) {
      return a.text == b.text && a.site == b.site;
    };
    for (const auto& [ordinal, entry] : group.by_ordinal[static_cast<std::size_t>(rank)]) {
      const FlightEntry* const theirs = group.entry(other, ordinal);
      if (theirs == nullptr || same(*entry, *theirs)) continue;
      const FlightShift shift = flight_shift(group, rank, other, ordinal, same);
      if (shift == FlightShift::none) return "";
      return number_of(ordinal) + ": by the places in the program, " +
             shift_text(group, rank, other, ordinal, shift);
    }
    return "";
  }

  // --- Messages, cycles ---

  void report_messages(const FlightGroup& group) {
    for (const FlightWait& wait : waits_) {
      if (wait.group != &group || !wait.entry->is_message()) continue;
      const bool is_send = wait.entry->kind == FlightKind::send;
      if (wait.partner != nullptr) {
        if (!is_send) continue;  // reported with the send
        const bool unlike = wait.entry->text != wait.partner->text && wait.partner->text != any_tensor;
        FlightFinding& finding =
            add(unlike ? Kind::unlike : Kind::in_transit, group, {wait.rank, wait.partner_rank},
                wait.entry->what() + " of " + group.describe(wait.rank) +
                    (unlike ? " and its receive have different tensors or objects"
                            : " and its receive are both in flight"));
        finding.details = {group.describe(wait.rank) + ": " + wait.entry->what_and_where(),
                           group.describe(wait.partner_rank) + ": " + wait.partner->what_and_where()};
        continue;
      }
      const int peer = wait.entry->peer;
      std::vector<int> ranks{wait.rank};
      if (peer >= 0) ranks.push_back(peer);
      const std::string who = peer < 0 ? "no rank" : group.describe(peer);
      FlightFinding& finding =
          add(is_send ? Kind::unreceived : Kind::unsent, group, ranks,
              wait.entry->what_and_where() + " of " + group.describe(wait.rank) + ": " + who +
                  (peer < 0  ? " has sent it"
                   : is_send ? " does not receive it"
                             : " has not sent it"));
      if (peer >= 0 && group.dump(peer) != nullptr) finding.details = activities_of(group, {peer});
    }
  }

  void report_cycle(const FlightCycle& cycle) {
    FlightFinding finding{.kind = Kind::cycle};
    finding.text = "cycle of " + counted(cycle.size(), "wait") +
                   ": a deadlock, if each member waits for "
                   "one operation before it begins the next";
    for (const FlightLink& link : cycle) {
      const FlightGroup& group = *link.wait->group;
      const std::string& member = group.members[static_cast<std::size_t>(link.wait->rank)];
      finding.members.push_back(member);
      finding.details.push_back(member + " is in " + link.wait->entry->what_and_where() + " of group '" +
                                group.label + "', which waits for " +
                                group.members[static_cast<std::size_t>(link.awaited)]);
    }
    verdict_.findings.push_back(std::move(finding));
  }

  // --- Ranks that are late ---

  void note_late(const FlightGroup& group) {
    const auto ranks = group.with_dump();
    if (ranks.size() < 2) return;
    std::map<int, std::vector<std::int64_t>> late;  // by rank: the time by which it arrived after all others
    std::size_t compared = 0;
    for (const auto& [ordinal, first] : group.by_ordinal[static_cast<std::size_t>(ranks.front())]) {
      std::array<std::pair<std::int64_t, int>, 2> last{};  // the last two arrivals
      bool all = !group.mismatches.contains(ordinal);
      for (const int rank : ranks) {
        const FlightEntry* const entry = group.entry(rank, ordinal);
        all = all && entry != nullptr;
        if (!all) break;
        const std::pair<std::int64_t, int> came{entry->begun, rank};
        if (came > last[1]) {
          last = {last[1], came};
        } else {
          last[0] = std::max(last[0], came);
        }
      }
      if (!all) continue;
      ++compared;
      late[last[1].second].push_back(last[1].first - last[0].first);
    }
    for (auto& [rank, times] : late) {
      if (times.size() < least_compared || times.size() * 5 < compared * 4) continue;
      const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
      std::nth_element(times.begin(), middle, times.end());
      if (*middle < least_late) continue;
      verdict_.groups.back().notes.push_back(group.describe(rank) + " was the last rank to begin " +
                                             std::to_string(times.size()) + " of " +
                                             counted(compared, "collective") + ", in half of them by " +
                                             time_text(*middle) + " or more (by the hosts' clocks)");
    }
  }

  FlightVerdict verdict_;
  std::vector<FlightGroup> groups_;
  std::vector<FlightWait> waits_;
  std::map<std::string, std::vector<const FlightWait*>> open_of_;  // by member
};

void append(std::string& out, const FlightFinding& finding, const std::string& indent) {
  out += indent + finding.text + "\n";
  for (const std::string& line : finding.details) out += indent + "  " + line + "\n";
}

}  // namespace

std::string_view name_of(FlightFinding::Kind kind) {
  static constexpr std::string_view names[] = {"cycle",   "mismatch",    "no_dump",
                                               "missing", "in_progress", "unreceived",
                                               "unsent",  "unlike",      "in_transit"};
  static_assert(std::size(names) == static_cast<std::size_t>(FlightFinding::Kind::in_transit) + 1);
  return names[static_cast<std::size_t>(kind)];
}

FlightVerdict flight_verdict(const std::vector<FlightDump>& dumps) { return Judge(dumps).judge(); }

std::string text_of(const FlightVerdict& verdict) {
  std::string out;
  for (const FlightFinding& finding : verdict.findings)
    if (finding.kind == Kind::cycle) append(out, finding, "");
  for (const FlightVerdict::Group& group : verdict.groups) {
    out += "group '" + group.label + "': " + group.summary + "\n";
    for (const std::string& error : group.errors) out += "  ended with: " + error + "\n";
    bool well = true;
    for (const FlightFinding& finding : verdict.findings) {
      if (finding.group != group.label || finding.kind == Kind::cycle) continue;
      append(out, finding, "  ");
      well = false;
    }
    if (well) out += "  all ranks called the same operations, and none is in flight\n";
    for (const std::string& note : group.notes) out += "  " + note + "\n";
  }
  for (const std::string& note : verdict.notes) out += note + "\n";
  return out;
}

}  // namespace weft::collectives
