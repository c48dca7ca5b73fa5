// GroupCore::Exchange: one collective of a member that is under way: as a plan of messages, or in shared
// memory. For the group's own sources.
#pragma once

#include <weft/parallel/collectives/group_core.h>
#include <weft/parallel/collectives/group_service.h>
#include <weft/parallel/collectives/messages/plan_run.h>
#include <weft/parallel/collectives/operation/signature_bytes.h>

#include <algorithm>

namespace weft::collectives {

// A notification; `sent` is told once it has left, or why it never will.
template <auto Method, class Sent, class... Arguments>
void post(const rpc::Peer& peer, Sent sent, const Arguments&... arguments) {
  using Found = rpc::Peer::FoundMethod<Method>;
  rpc::OutgoingCall call = peer.make_call(Found::name, Found::id, sizeof...(Arguments));
  call.notify = true;
  rpc::Peer::encode<typename Found::Type>(call, arguments...);
  peer.start_typed<void>(std::move(call), rpc::Peer::Decode<void>{}).then(std::move(sent));
}

// Its run's messages go through its group.
class GroupCore::Exchange final : public Outbox, public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(std::shared_ptr<GroupCore> group, Collective collective)
      : group_(std::move(group)), collective_(std::move(collective)), hash_(collective_.signature.hash()) {
    SharedSpace* const space = group_->space();
    if (space == nullptr) return;
    if (group_->backend() == GroupBackend::memory) {
      shared_.emplace(*space, collective_);
    } else if (collectives::has_levels(collective_.layout.operation)) {
      levels_.emplace(collective_, *group_->hosts_, *space);
      shared_.emplace(*space, levels_->first);
    }
  }

  rpc::Future<void> future() {
    promise_.on_cancel([weak = weak_from_this()] {
      if (const auto self = weak.lock())
        self->group_->abort(self->group_->describe(self->group_->rank()) + " aborted " + self->text());
    });
    return promise_.future();
  }
  void start(std::uint64_t sequence, PlanRun::Done done) {
    sequence_ = sequence;
    if (levels_) {
      const Hosts& hosts = *group_->hosts_;
      if (!hosts.in_column()) return;
      run_ = make_run({hosts.host, hosts.count(), 0}, levels_->between, levels_->memory, std::move(done));
    } else {
      run_ = make_run({group_->rank(), group_->size(), 0}, collective_.layout, collective_.memory,
                      std::move(done));
    }
  }
  // Of a rank: its number in the plan, or none.
  std::optional<int> in_plan(int rank) const {
    if (!levels_) return rank;
    const Hosts& hosts = *group_->hosts_;
    return hosts.in_column() && hosts.index_of(rank) == hosts.index ? std::optional(hosts.host_of(rank))
                                                                    : std::nullopt;
  }
  void send(int number, std::uint32_t label, std::span<const std::byte> bytes, rpc::Callback left) override {
    // What is sent is the run's memory, which `left` keeps until it has run; nobody writes there meanwhile.
    const int to = levels_ ? group_->hosts_->in_column(number) : number;
    const rpc::Buffer lent(run_, const_cast<std::byte*>(bytes.data()), bytes.size());
    post<&GroupService::data>(
        group_->peers_[static_cast<std::size_t>(to)],
        [self = shared_from_this(), to, left = std::move(left)](rpc::Result<void>&& sent) mutable {
          GroupCore& group = *self->group_;
          if (sent.ok()) return group.turns_.run(std::move(left));
          group.turns_.run([self, to, error = sent.error()] { self->group_->not_sent(to, error); });
        },
        group_->id_, sequence_, label, hash_ + between(collective_.layout.blocks, to), lent);
  }

  // The run is over, or is ended, and nobody is told of it any more.
  void close() {
    closed_ = true;
    if (run_ != nullptr)
      run_->fail(std::make_exception_ptr(rpc::Error(rpc::ErrorKind::aborted, "the collective is over")));
  }
  void fail(const rpc::Error& error) {
    close();
    record();
    group_->recorder_.failed(*ticket_, error.what());
    promise_.fail(error);
  }
  void succeed() {
    closed_ = true;
    auto result = rpc::capture([this] {
      if (collective_.finish) collective_.finish();
    });
    if (ticket_) {
      group_->recorder_.done(*ticket_);
    } else {
      with_operation([this](const FlightOperation& operation) { group_->recorder_.note(operation); });
    }
    promise_.complete(std::move(result));
  }
  // What it is, for people who look at a group that hangs. Once, where others may see it under way.
  void record() {
    if (!ticket_)
      with_operation(
          [this](const FlightOperation& operation) { ticket_ = group_->recorder_.begin(operation); });
  }
  void record_awaited() {
    if (!ticket_ || closed_) return;
    std::vector<int> ranks;
    for (int rank = 0; rank < group_->size(); ++rank)
      if (rank != group_->rank() && awaits(rank)) ranks.push_back(rank);
    group_->recorder_.waits_for(*ticket_, std::move(ranks));
  }

  std::uint64_t sequence() const { return is_shared() ? shared_->sequence() : sequence_; }
  // The hash of a message from a rank, where it means the same. In an all_to_all_v they agree by pairs: there
  // the hash is of so many elements more as the one gives to the other.
  std::uint64_t hash_from(int rank) const { return hash_ + between(collective_.layout.from, rank); }
  // How many elements a rank has for this one by its hash; none: it means something else altogether.
  std::optional<std::uint64_t> announced(std::uint64_t hash) const {
    const std::uint64_t elements = hash - hash_;
    return has_sizes_of_pairs() && elements < max_elements ? std::optional(elements) : std::nullopt;
  }
  std::uint64_t expected_from(int rank) const { return between(collective_.layout.from, rank); }
  std::string text() const { return collective_.text(); }
  std::chrono::nanoseconds limit() const { return collective_.timeout.value_or(group_->options_.timeout); }
  void begin_limit() { deadline_ = rpc::later(group_->loop_->now(), limit()); }
  rpc::Clock::time_point deadline() const { return deadline_; }
  PlanRun& run() { return *run_; }
  SharedQueue::RunPtr shared() { return {shared_from_this(), &*shared_}; }
  bool closed() const { return closed_; }
  bool awaits(int rank) {
    if (is_shared()) return shared_->awaits(rank);
    if (disagrees) return !signatures.contains(rank);
    if (levels_ && level != Level::between) {
      const Hosts& hosts = *group_->hosts_;
      const bool here = hosts.host_of(rank) == hosts.host;
      return level == Level::last ? here && shared_->awaits(hosts.index_of(rank)) : true;
    }
    const std::vector<int> awaited = run_->awaited();
    const auto number = in_plan(rank);  // one beside this in its host has not ended before this has
    return !number || std::find(awaited.begin(), awaited.end(), *number) != awaited.end();
  }

  // All of it in memory that all ranks share; else, with levels, some of it in that of this host's.
  bool is_shared() const { return shared_ && !levels_; }
  bool has_levels() const { return levels_.has_value(); }
  enum class Level : std::uint8_t { waiting, first, between, last };
  Level level = Level::waiting;
  bool has_plan() const { return run_ != nullptr; }
  void begin_last() {
    level = Level::last;
    if (disagrees) levels_->refuse_last();
    shared_.emplace(group_->shared_->space(), levels_->last);
  }

  template <class F>
  void with_operation(F f) const {
    const SignatureBytes meaning(collective_.signature);
    f(FlightOperation{.kind = FlightKind::collective,
                      .sequence = sequence(),
                      .meaning = meaning.view(),
                      .render = &SignatureBytes::text,
                      .site = collective_.site,
                      .bytes = collective_.layout.elements * collective_.memory.item_size,
                      .begun = created_});
  }

  bool disagrees = false;
  bool asking = false;                    // who is missing
  std::map<int, std::string> signatures;  // of those that have told theirs

 private:
  static constexpr std::uint64_t max_elements = std::uint64_t{1} << 44;
  bool has_sizes_of_pairs() const { return collective_.layout.operation == Operation::all_to_all_v; }
  std::uint64_t between(const std::vector<Range>& blocks, int rank) const {
    return has_sizes_of_pairs() ? blocks[static_cast<std::size_t>(rank)].size() : 0;
  }

  std::shared_ptr<PlanRun> make_run(Party party, const Layout& layout, const PlanMemory& memory,
                                    PlanRun::Done done) const {
    party.item_size = collective_.reduction ? collective_.reduction->accumulator_size() : memory.item_size;
    party.bounds = group_->options_.bounds;
    return std::make_shared<PlanRun>(
        party.rank, party.ranks, plan_of(party, layout), memory, collective_.reduction, std::move(done),
        group_->wire_for(collective_.signature.dtype, party, layout), group_->size());
  }

  const std::shared_ptr<GroupCore> group_;
  Collective collective_;
  const std::uint64_t hash_;
  const FlightClock::Ticks created_ = FlightClock::now();
  std::optional<FlightRecorder::Ticket> ticket_;  // none: nobody can have seen it under way
  rpc::Promise<void> promise_;
  std::uint64_t sequence_ = 0;
  rpc::Clock::time_point deadline_;
  std::shared_ptr<PlanRun> run_;     // of one that is a plan; of one with levels, if this rank is in a column
  std::optional<Levels> levels_;     // of one among hosts
  std::optional<SharedRun> shared_;  // of one in shared memory, and of the level that is
  bool closed_ = false;
};

template <auto Method, class... Arguments>
void GroupCore::tell_others(const Arguments&... arguments) {
  for (int rank = 0; rank < size(); ++rank)
    if (rank != rank_ && !left_.contains(rank))
      post<Method>(peers_[static_cast<std::size_t>(rank)], [](rpc::Result<void>&&) {}, arguments...);
}

}  // namespace weft::collectives
