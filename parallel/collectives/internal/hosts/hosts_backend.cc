#include <weft/parallel/collectives/internal/hosts/hosts_backend.h>

#include <utility>

namespace weft::collectives {

class HostsBackend::InLevels final : public PlanExchange {
 public:
  InLevels(std::shared_ptr<BackendOwner> owner, Collective&& collective, HostsBackend& backend)
      : PlanExchange(std::move(owner), std::move(collective), *backend.messages_),
        levels_(this->collective, backend.hosts_, backend.queue_.space()),
        backend_(backend) {
    level_run_.emplace(backend_.queue_.space(), levels_.first);
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
    if (disagrees || level_ == Level::between) return PlanExchange::awaits(rank);
    if (level_ != Level::last) return true;
    return hosts().host_of(rank) == hosts().host && level_run_->awaits(hosts().index_of(rank));
  }

  // All ranks have left the first level when ranks in columns agree, or when the last level begins.
  FlightClock::Ticks arrived() const override {
    const FlightClock::Ticks in_column = PlanExchange::arrived();
    return in_column == 0 && level_ == Level::last ? level_run_->arrived() : in_column;
  }

  SharedQueue::RunPtr enter_level() {
    if (level_ == Level::waiting) level_ = Level::first;
    in_use = true;
    return {self(), &*level_run_};
  }
  // The ranks of this host agree, and reach the last level even if other hosts fail. Returns whether there is
  // another level.
  bool leave_level() {
    if (level_ == Level::last) return false;
    if (disagrees || !hosts().in_column()) {
      begin_last();
    } else {
      level_ = Level::between;
      PlanExchange::begin();
    }
    return true;
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
  void begin_last() {
    level_ = Level::last;
    if (disagrees) levels_.refuse_last();
    level_run_.emplace(backend_.queue_.space(), levels_.last);
    backend_.begin_level();
  }

  const Hosts& hosts() const { return backend_.hosts_; }
  std::shared_ptr<InLevels> self() { return std::static_pointer_cast<InLevels>(shared_from_this()); }

  Levels levels_;
  HostsBackend& backend_;
  Level level_ = Level::waiting;
  std::optional<SharedRun> level_run_;  // of the present level
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

ExchangePtr HostsBackend::make(std::shared_ptr<BackendOwner> owner, Collective&& collective) {
  if (!runs_in_levels(collective)) return messages_->make(std::move(owner), std::move(collective));
  return std::make_shared<InLevels>(std::move(owner), std::move(collective), *this);
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

// Starts a level of the exchange whose turn it is.
void HostsBackend::begin_level() {
  const auto exchange = waiting_.front();
  queue_.push(exchange->enter_level(), [this, exchange](SharedQueue::Outcome outcome) {
    exchange->owner->run_in_turn(
        [this, exchange, outcome = std::move(outcome)]() mutable {
          level_over(exchange, std::move(outcome));
        },
        true);
  });
}

void HostsBackend::level_over(const std::shared_ptr<InLevels>& exchange, SharedQueue::Outcome outcome) {
  BackendOwner& owner = *exchange->owner;
  exchange->in_use = false;
  if (!outcome.ok() || owner.has_ended()) return owner.failed(exchange, outcome.error());
  const bool same = outcome.value() != SharedRun::State::differs;
  if (!same && !exchange->disagrees) owner.differs(exchange);
  if (same && exchange->leave_level()) return;
  if (!exchange->disagrees) owner.done(exchange);
  if (waiting_.empty() || waiting_.front() != exchange) return;
  waiting_.pop_front();
  if (!waiting_.empty() && !owner.has_ended()) begin_level();
}

}  // namespace weft::collectives
