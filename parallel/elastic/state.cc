#include <weft/parallel/elastic/state.h>

#include <weft/parallel/training/internal/agreement.h>
#include <weft/rpc/codec/struct_codec.h>

#include <algorithm>
#include <utility>

namespace weft::elastic {
namespace {

// Sent by each rank to the others at the beginning of a generation (State::sync()).
struct StandingMessage {
  bool synced = false;
  std::uint64_t commits = 0;
  bool sends_later = false;
  std::uint64_t began = 0, committed = 0, entered = 0;
  std::vector<std::string> parts = {};  // names and kinds
};
WEFT_CODEC(StandingMessage, synced, commits, sends_later, began, committed, entered, parts)

}  // namespace

WorkersChanged::WorkersChanged()
    : std::runtime_error("elastic: workers join or leave; run() continues with the next generation") {}
WorkersChanged::~WorkersChanged() = default;

State& State::add_part(std::string name, std::shared_ptr<StatePart> part, Scope scope) {
  for (const Part& other : parts_)
    if (other.name == name)
      throw rpc::Error(rpc::ErrorKind::already_exists,
                       "elastic::State has a part '" + name + "' already, expected unique names");
  parts_.push_back({std::move(name), std::move(part), scope});
  copied_commits_.reset();
  return *this;
}

void State::copy() {
  copy_whole();
  for (ShardedPart* const part : sharded_parts()) part->commit();
}

void State::copy_whole() {
  for (const Part& part : parts_)
    if (dynamic_cast<ShardedPart*>(part.part.get()) == nullptr) part.part->commit();
  copied_commits_ = standing_.commits;
  calls_ = 0;
  if (live_ != Live::copied) mark();
}

void State::mark() {
  for (const Part& part : parts_) part.part->mark();
  live_ = Live::marked;
}

std::vector<ShardedPart*> State::sharded_parts() const {
  std::vector<ShardedPart*> sharded;
  for (const Part& part : parts_)
    if (auto* const each = dynamic_cast<ShardedPart*>(part.part.get())) sharded.push_back(each);
  return sharded;
}

void State::stage(std::uint64_t number) {
  for (ShardedPart* const part : sharded_parts()) part->stage(number, group_ ? &*group_ : nullptr);
}

Vote State::vote(Vote own) {
  if (votes_) return votes_(own);
  if (group_ && !sharded_parts().empty()) group_->barrier().get();  // all ranks have staged their parts
  return own;
}

// When the transfers of this rank are complete, a sender may change its state, and a receiver has the state.
// The other ranks wait for these ranks, since the transfer may take longer than ranks may be late.
void State::receive() {
  for (const auto& complete : std::exchange(in_transit_, {})) complete();
  if (const auto group = std::exchange(transit_group_, std::nullopt))
    group->barrier(group->options().timeout).get();
}

bool State::take_received() {
  if (!receives_commits_) return false;
  standing_.synced = true;
  standing_.commits = *std::exchange(receives_commits_, std::nullopt);
  standing_.committed = generation_;
  copied_commits_.reset();  // that copy is of another training
  return true;
}

// The received state is copied, because a failure may happen before the next commit.
void State::end_body() {
  receive();
  if (take_received()) copy();
}

// The agreement is complete when all ranks have staged their sharded parts, and only then does a rank
// confirm its own. So if a rank does not learn of the agreement, it has staged the commit that other ranks
// may have confirmed. A state without sharded parts is copied before the agreement, so that a failure of the
// agreement loses no steps.
bool State::commit_all() {
  receive();
  take_received();
  const bool is_sharded = !sharded_parts().empty();
  const auto confirm = [&] { count_commit(), copy(); };
  if (is_sharded) {
    stage(standing_.commits + 1);
    if (group_) group_->barrier(group_->options().timeout).get();  // some ranks copy more than others
  } else {
    confirm();
  }
  const bool change = vote({}).change;
  if (is_sharded) confirm();
  return change;
}

void State::count_commit() {
  ++standing_.commits;
  standing_.committed = generation_;
}

// A commit without the batch's samples would process them again after a change of the workers.
void State::expect_recorded() const {
  for (const Part& part : parts_)
    if (detail::in_round(*part.part))
      throw rpc::Error(rpc::ErrorKind::failed_precondition,
                       "elastic::State: a commit within a batch of the sampler '" + part.name +
                           "', expected record() before it");
}

void State::commit() {
  expect_recorded();
  if (commit_all()) throw WorkersChanged();
}

bool State::step(const std::function<void()>& apply, bool ready) {
  if (!sharded_parts().empty())
    throw rpc::Error(rpc::ErrorKind::failed_precondition,
                     "elastic::State::step: the state has a sharded part, whose steps cannot be made again "
                     "without the parts of a lost rank: use commit_every()");
  receive();
  const Vote all = vote({.veto = !ready});
  if (all.veto) return false;  // a change waits for the next step, so that it finds all ranks after a step
  live_ = Live::torn;
  apply();
  expect_recorded();
  const bool received = take_received();
  count_commit();
  received ? copy() : mark();
  if (all.change) throw WorkersChanged();
  return true;
}

void State::commit_every(std::uint64_t n) {
  expect_recorded();
  if (++calls_ >= n) commit();
}

void State::check() {
  expect_recorded();
  receive();
  if (!vote({}).change) return;
  commit_all();
  throw WorkersChanged();
}

void State::restore() {
  if (!copied_commits_)
    throw rpc::Error(rpc::ErrorKind::failed_precondition,
                     "elastic::State: restore() without a commit of all parts, expected commit() before it");
  for (const Part& part : parts_) part.part->restore();
  standing_.commits = *copied_commits_;
  live_ = Live::copied;
  calls_ = 0;
}

void State::recover() {
  if (live_ != Live::marked) return restore();
  for (const Part& part : parts_) part.part->rewind();
}

std::optional<int> State::sync(const collectives::Group& group) {
  in_transit_.clear();
  transit_group_.reset();
  receives_commits_.reset();
  calls_ = 0;
  StandingMessage own{.synced = standing_.synced,
                      .commits = standing_.commits,
                      .began = standing_.began,
                      .committed = standing_.committed,
                      .entered = std::exchange(standing_.entered, generation_)};
  own.sends_later = sends_later_ && live_ == Live::marked &&
                    std::any_of(parts_.begin(), parts_.end(),
                                [](const Part& part) { return detail::is_sampler(*part.part); });
  for (const Part& part : parts_)
    own.parts.push_back(part.name + " (" + part.part->kind() +
                        (part.scope == Scope::rank ? ", of a rank)" : ")"));
  const auto all = group.all_gather_object(own).get();
  std::vector<std::vector<std::string>> parts;
  for (const StandingMessage& rank : all) parts.push_back(rank.parts);
  if (const auto difference = training::difference_of(parts, "no further part"))
    training::throw_on_all_ranks(
        group, {rpc::ErrorKind::failed_precondition,
                "elastic::State: " + *difference + ": all workers add the same parts in the same order"});
  std::vector<Standing> standings;
  for (const auto& rank : all)
    standings.push_back(
        {rank.synced, rank.commits, rank.sends_later, rank.began, rank.committed, rank.entered});
  const auto sharded = sharded_parts();
  standings = without_abandoned(std::move(standings), !sharded.empty());
  standing_.synced = standings[static_cast<std::size_t>(group.rank())].synced;
  const SyncPlan plan = plan_sync(standings);
  const bool counts = standings[static_cast<std::size_t>(plan.source)].synced ? standing_.synced
                                                                              : group.rank() == plan.source;
  group_.reset();
  if (counts && !copied_commits_) {
    stage(standing_.commits);
    for (ShardedPart* const part : sharded) part->commit();
  }
  for (const Part& part : parts_) part.part->set_group(group);
  standing_.began = generation_;
  if (!plan.later.empty()) {
    sync_later(group, plan, standings[static_cast<std::size_t>(plan.source)].commits);
    return plan.source;
  }
  if (plan.needed) {
    // The sync may fail after it has written a part of this rank's state. Then the live state is not the
    // state of the last step any more.
    if (group.rank() != plan.source && std::exchange(live_, Live::copied) != Live::copied) copy_whole();
    for (const Part& part : parts_)
      if (part.scope == Scope::job) part.part->sync(group, plan.source);
    standing_.commits = standings[static_cast<std::size_t>(plan.source)].commits;
    standing_.committed = standings[static_cast<std::size_t>(plan.source)].committed;
    if (group.rank() != plan.source || !copied_commits_) copy_whole();
  }
  if (!counts)
    for (ShardedPart* const part : sharded) part->forget();
  standing_.synced = true;
  group_ = group;
  for (ShardedPart* const part : sharded) part->reshard(group, standing_.commits);
  return plan.needed ? std::optional(plan.source) : std::nullopt;
}

void State::sync_later(const collectives::Group& group, const SyncPlan& plan, std::uint64_t commits) {
  transit_group_ = group;
  for (const Transfer& transfer : plan.later)
    if (transfer.to == group.rank()) receives_commits_ = commits;
  for (const Part& part : parts_)
    if (part.scope == Scope::job)
      if (auto complete = part.part->sync_later(group, plan)) in_transit_.push_back(std::move(complete));
}

}  // namespace weft::elastic
