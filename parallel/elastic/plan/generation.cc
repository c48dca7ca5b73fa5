#include <weft/parallel/elastic/plan/generation.h>

#include <weft/rpc/core/error.h>

#include <algorithm>
#include <sstream>
#include <tuple>

namespace weft::elastic {
namespace {

bool has(const std::vector<Candidate>& candidates, const rpc::AgentId& id) {
  return std::any_of(candidates.begin(), candidates.end(),
                     [&](const Candidate& candidate) { return candidate.id == id; });
}

}  // namespace

bool Generation::contains(const rpc::AgentId& worker) const {
  return std::find(members.begin(), members.end(), worker) != members.end();
}

std::string to_text(const Generation& generation) {
  std::string text = "generation " + std::to_string(generation.number);
  text += generation.finished ? " finished\n" : "\n";
  for (const rpc::AgentId& member : generation.members)
    text += std::to_string(member.incarnation) + " " + member.name + "\n";
  return text;
}

Generation generation_from_text(const std::string& text) {
  Generation generation;
  std::istringstream lines(text);
  std::string line, word, finished;
  std::getline(lines, line);
  std::istringstream first(line);
  bool read = static_cast<bool>(first >> word >> generation.number) && word == "generation";
  if (first >> finished) {
    read = read && finished == "finished";
    generation.finished = true;
  }
  while (read && std::getline(lines, line)) {
    rpc::AgentId member;
    std::istringstream words(line);
    read = static_cast<bool>(words >> member.incarnation) && words.get() == ' ' &&
           static_cast<bool>(std::getline(words, member.name));
    generation.members.push_back(std::move(member));
  }
  if (!read)
    throw rpc::Error(
        rpc::ErrorKind::protocol_error,
        "malformed generation of workers in the store: '" + text +
            "', expected 'generation NUMBER [finished]', then a line 'INCARNATION NAME' for each "
            "member");
  return generation;
}

WorkerLimits WorkerLimits::or_else(const WorkerLimits& others) const {
  const auto first_set = [](std::size_t limit, std::size_t other) { return limit != 0 ? limit : other; };
  return {first_set(min, others.min), first_set(start, others.start), first_set(max, others.max)};
}

std::size_t WorkerLimits::least(const Generation& current) const {
  return std::max({std::size_t{1}, min, current.number == 0 ? start : 0});
}

std::optional<Generation> next_generation(const Generation& current, std::vector<Candidate> candidates,
                                          const WorkerLimits& limits) {
  if (candidates.size() < limits.least(current)) return std::nullopt;
  Generation next{.number = current.number + 1};
  for (const rpc::AgentId& member : current.members)
    if (has(candidates, member)) next.members.push_back(member);
  std::erase_if(candidates, [&](const Candidate& candidate) { return next.contains(candidate.id); });
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return std::tie(a.order, a.id) < std::tie(b.order, b.id);
  });
  for (Candidate& candidate : candidates) next.members.push_back(std::move(candidate.id));
  if (limits.max != 0 && next.members.size() > limits.max) next.members.resize(limits.max);
  return next;
}

bool may_propose(const Generation& current, const std::vector<Candidate>& candidates,
                 const rpc::AgentId& self) {
  return current.contains(self) ||
         std::none_of(current.members.begin(), current.members.end(),
                      [&](const rpc::AgentId& member) { return has(candidates, member); });
}

std::vector<Standing> without_abandoned(std::vector<Standing> ranks, bool is_sharded) {
  std::uint64_t committed = 0;
  for (const Standing& standing : ranks)
    if (standing.synced) committed = std::max(committed, standing.committed);
  for (Standing& standing : ranks) standing.synced = standing.synced && standing.began >= committed;
  if (!is_sharded) return ranks;
  const std::vector<Standing> all = ranks;
  for (Standing& standing : ranks)
    for (const Standing& other : all)
      if (other.synced && other.began > standing.entered && other.commits < standing.commits)
        standing.synced = false;
  return ranks;
}

SyncPlan plan_sync(const std::vector<Standing>& ranks) {
  const auto rank_of = [](const Standing& standing) { return std::tie(standing.synced, standing.commits); };
  const auto most = std::max_element(ranks.begin(), ranks.end(), [&](const Standing& a, const Standing& b) {
    return rank_of(a) < rank_of(b);
  });
  const bool same = std::all_of(ranks.begin(), ranks.end(), [&](const Standing& standing) {
    return standing.synced && standing.commits == most->commits;
  });
  SyncPlan plan{.source = static_cast<int>(most - ranks.begin()), .needed = !same};
  std::vector<int> have, lack;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].synced && ranks[rank].commits != most->commits) return plan;
    (ranks[rank].synced ? have : lack).push_back(static_cast<int>(rank));
  }
  if (!most->synced || !most->sends_later) return plan;
  for (std::size_t i = 0; i < lack.size(); ++i) plan.later.push_back({have[i % have.size()], lack[i]});
  return plan;
}

}  // namespace weft::elastic
