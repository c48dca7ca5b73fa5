#include <weft/parallel/elastic/state.h>

#include <weft/parallel/elastic/internal/standing_message.h>

#include <algorithm>

namespace weft::elastic {
namespace {

std::optional<std::string> difference_of(const std::vector<detail::StandingMessage>& ranks) {
  for (std::size_t rank = 1; rank < ranks.size(); ++rank) {
    const auto &first = ranks[0].parts, &other = ranks[rank].parts;
    if (first == other) continue;
    const auto [a, b] = std::mismatch(first.begin(), first.end(), other.begin(), other.end());
    return "rank 0 has " + (a == first.end() ? "no further part" : *a) + ", rank " + std::to_string(rank) +
           " has " + (b == other.end() ? "no further part" : *b);
  }
  return std::nullopt;
}

}  // namespace

WorkersChanged::WorkersChanged()
    : std::runtime_error("elastic: workers join or leave; run() continues with the next generation") {}
WorkersChanged::~WorkersChanged() = default;

State& State::add_part(std::string name, std::shared_ptr<StatePart> part, Scope scope) {
  for (const Part& other : parts_)
    if (other.name == name)
      throw rpc::Error(rpc::ErrorKind::already_exists, "elastic::State has a part '" + name + "' already");
  parts_.push_back({std::move(name), std::move(part), scope});
  committed_ = false;
  return *this;
}

void State::copy() {
  for (const Part& part : parts_) part.part->commit();
  committed_ = true;
  calls_ = 0;
}

bool State::agree_on_change() { return changes_ && changes_(); }

void State::commit() {
  copy();
  ++standing_.commits;
  if (agree_on_change()) throw WorkersChanged();
}

void State::commit_every(std::uint64_t n) {
  if (++calls_ >= n) commit();
}

void State::check() {
  if (!agree_on_change()) return;
  copy();
  ++standing_.commits;
  throw WorkersChanged();
}

void State::restore() {
  if (!committed_)
    throw rpc::Error(rpc::ErrorKind::failed_precondition, "elastic::State: nothing was committed yet");
  for (const Part& part : parts_) part.part->restore();
  calls_ = 0;
}

std::optional<int> State::sync(const collectives::Group& group) {
  detail::StandingMessage own{.synced = standing_.synced, .commits = standing_.commits};
  for (const Part& part : parts_)
    own.parts.push_back(part.name + " (" + part.part->kind() +
                        (part.scope == Scope::rank ? ", of a rank)" : ")"));
  const auto all = group.all_gather_object(own).get();
  if (const auto difference = difference_of(all)) {
    // A rank that throws ends the group: first all ranks learn of the difference.
    (void)rpc::capture([&] { group.barrier().get(); });
    throw rpc::Error(rpc::ErrorKind::failed_precondition,
                     "elastic::State: " + *difference + ": all workers add the same parts in the same order");
  }
  std::vector<Standing> standings;
  for (const auto& rank : all) standings.push_back({rank.synced, rank.commits});
  const SyncPlan plan = plan_sync(standings);
  for (const Part& part : parts_) part.part->set_group(group);
  if (plan.needed) {
    for (const Part& part : parts_)
      if (part.scope == Scope::job) part.part->sync(group, plan.source);
    if (group.rank() != plan.source || !committed_) copy();
    standing_.commits = standings[static_cast<std::size_t>(plan.source)].commits;
  }
  standing_.synced = true;
  return plan.needed ? std::optional(plan.source) : std::nullopt;
}

}  // namespace weft::elastic
