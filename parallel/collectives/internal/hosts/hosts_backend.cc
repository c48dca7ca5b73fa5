#include <weft/parallel/collectives/internal/hosts/hosts_backend.h>

#include <weft/parallel/collectives/internal/group/group_collectives.h>

#include <utility>

namespace weft::collectives {

class HostsBackend::InLevels final : public PlanCollective {
 public:
  InLevels(std::shared_ptr<GroupCollectives> group, Collective&& arguments, HostsBackend& backend)
      : PlanCollective(std::move(group), std::move(arguments), *backend.messages_),
        levels_(collective(), backend.hosts_, backend.queue_.space()),
        backend_(backend) {
    level_transfer_.emplace(backend_.queue_.space(), levels_.first);
  }

  // Also for a collective that is known to be invalid: the other ranks of this host may wait for this rank in
  // the first level.
  void begin() override {
    backend_.waiting_.push_back(self());
    if (backend_.waiting_.size() == 1) backend_.begin_level();
  }
  void on_difference() override {
    if (level_ == Level::between) begin_last();
  }
  bool awaits(int rank) override {
    if (level_ == Level::between) return PlanCollective::awaits(rank);
    if (level_ != Level::last) return true;
    return hosts().host_of(rank) == hosts().host && level_transfer_->awaits(hosts().index_of(rank));
  }

  // All ranks have left the first level when ranks in columns agree, or when the last level begins.
  FlightClock::Ticks arrived() const override {
    const FlightClock::Ticks in_column = PlanCollective::arrived();
    return in_column == 0 && level_ == Level::last ? level_transfer_->arrived() : in_column;
  }

  SharedQueue::TransferPtr enter_level() {
    if (level_ == Level::waiting) level_ = Level::first;
    use_memory(true);
    return {self(), &*level_transfer_};
  }
  void level_ended(SharedQueue::Outcome outcome) {
    group().run_in_turn(
        [self = self(), outcome = std::move(outcome)]() mutable { self->level_over(std::move(outcome)); },
        true);
  }

 private:
  enum class Level : std::uint8_t { waiting, first, between, last };

  std::optional<int> number_of(int rank) const override {
    return hosts().in_column() && hosts().index_of(rank) == hosts().index
               ? std::optional(hosts().host_of(rank))
               : std::nullopt;
  }
  int rank_of(int number) const override { return hosts().in_column(number); }
  MessagesBackend::Part part() const override {
    return {hosts().host, hosts().count(), levels_.between, levels_.memory};
  }
  void plan_done() override { begin_last(); }
  void level_over(SharedQueue::Outcome outcome) {
    use_memory(false);
    if (!outcome.ok() || group().has_ended()) return group().failed(self(), outcome.error());
    const bool same = outcome.value() != SharedTransfer::State::differs;
    if (!same && !disagrees()) group().exchange_signatures(self());
    if (same && leave_level()) return;
    if (!disagrees()) group().done(self());
    auto& waiting = backend_.waiting_;
    if (waiting.empty() || waiting.front().get() != this) return;
    waiting.pop_front();
    if (!waiting.empty() && !group().has_ended()) backend_.begin_level();
  }
  // The ranks of this host agree, and reach the last level even if other hosts fail. Returns whether there is
  // another level.
  bool leave_level() {
    if (level_ == Level::last) return false;
    if (disagrees() || !hosts().in_column()) {
      begin_last();
    } else {
      level_ = Level::between;
      PlanCollective::begin();
    }
    return true;
  }
  void begin_last() {
    level_ = Level::last;
    if (disagrees()) levels_.refuse_last();
    level_transfer_.emplace(backend_.queue_.space(), levels_.last);
    backend_.begin_level();
  }

  const Hosts& hosts() const { return backend_.hosts_; }
  std::shared_ptr<InLevels> self() { return std::static_pointer_cast<InLevels>(shared_from_this()); }

  Levels levels_;
  HostsBackend& backend_;
  Level level_ = Level::waiting;
  std::optional<SharedTransfer> level_transfer_;  // of the present level
};

namespace {

// A rank that refuses its call has no layout, but must take the path of the other ranks. The other ranks
// compare a call on devices by a barrier, or by an all_to_all of sizes (group_devices.cc).
bool runs_in_levels(const Collective& collective) {
  const Signature& signature = collective.signature;
  if (!signature.refused) return has_levels(collective.layout.operation);
  if (signature.device) return signature.operation != Operation::all_to_all_v;
  return has_levels(signature.operation);
}

}  // namespace

std::shared_ptr<CollectiveInFlight> HostsBackend::make(std::shared_ptr<GroupCollectives> group,
                                                       Collective&& collective) {
  if (!runs_in_levels(collective)) return messages_->make(std::move(group), std::move(collective));
  return std::make_shared<InLevels>(std::move(group), std::move(collective), *this);
}

std::optional<std::uint64_t> HostsBackend::offset_for(int to, const rpc::Buffer& memory) const {
  if (hosts_.host_of(to) != hosts_.host) return std::nullopt;
  return queue_.space().offset_of(memory.data(), memory.size());
}

rpc::Buffer HostsBackend::memory_of(int from, std::uint64_t offset, std::size_t bytes) const {
  if (hosts_.host_of(from) != hosts_.host) return Backend::memory_of(from, offset, bytes);
  return {nullptr, queue_.space().memory_of(hosts_.index_of(from), offset, bytes), bytes};
}

void HostsBackend::stop() {
  queue_.stop();
  waiting_.clear();
}

// Starts a level of the collective whose turn it is.
void HostsBackend::begin_level() {
  const auto collective = waiting_.front();
  queue_.push(collective->enter_level(),
              [collective](SharedQueue::Outcome outcome) { collective->level_ended(std::move(outcome)); });
}

}  // namespace weft::collectives
