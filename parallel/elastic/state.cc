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
  copy_whole();
  for (SplitPart* const part : split_parts()) part->commit();
}

void State::copy_whole() {
  for (const Part& part : parts_)
    if (dynamic_cast<SplitPart*>(part.part.get()) == nullptr) part.part->commit();
  committed_ = true;
  calls_ = 0;
}

std::vector<SplitPart*> State::split_parts() const {
  std::vector<SplitPart*> split;
  for (const Part& part : parts_)
    if (auto* const each = dynamic_cast<SplitPart*>(part.part.get())) split.push_back(each);
  return split;
}

void State::stage(std::uint64_t number) {
  for (SplitPart* const part : split_parts()) part->stage(number, group_ ? &*group_ : nullptr);
}

bool State::agree_on_change() {
  if (changes_) return changes_();
  if (group_ && !split_parts().empty()) group_->barrier().get();
  return false;
}

// The agreement is complete once all ranks have staged their split parts. Only then are these confirmed: a
// rank that does not learn of the agreement has staged what others may have confirmed. Other parts are
// copied before it, so that its failure loses no steps.
bool State::commit_all() {
  const bool is_split = !split_parts().empty();
  const auto confirm = [&] { copy(), ++standing_.commits; };
  is_split ? stage(standing_.commits + 1) : confirm();
  const bool change = agree_on_change();
  if (is_split) confirm();
  return change;
}

void State::commit() {
  if (commit_all()) throw WorkersChanged();
}

void State::commit_every(std::uint64_t n) {
  if (++calls_ >= n) commit();
}

void State::check() {
  if (!agree_on_change()) return;
  commit_all();
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
  const auto split = split_parts();
  const bool counts = standings[static_cast<std::size_t>(plan.source)].synced ? standing_.synced
                                                                              : group.rank() == plan.source;
  group_.reset();
  if (counts && !committed_) {
    stage(standing_.commits);
    for (SplitPart* const part : split) part->commit();
  }
  for (const Part& part : parts_) part.part->set_group(group);
  if (plan.needed) {
    for (const Part& part : parts_)
      if (part.scope == Scope::job) part.part->sync(group, plan.source);
    if (group.rank() != plan.source || !committed_) copy_whole();
    standing_.commits = standings[static_cast<std::size_t>(plan.source)].commits;
  }
  if (!counts)
    for (SplitPart* const part : split) part->forget();
  standing_.synced = true;
  group_ = group;
  for (SplitPart* const part : split) part->reshard(group, standing_.commits);
  return plan.needed ? std::optional(plan.source) : std::nullopt;
}

}  // namespace weft::elastic
