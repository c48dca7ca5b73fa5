#include <weft/parallel/collectives/group_core.h>

#include <weft/parallel/collectives/group_exchange.h>
#include <weft/rpc/core/when_all.h>

#include <algorithm>

namespace weft::collectives {
namespace {

// Up to so much a collective in shared memory runs on the thread that begins it: it takes no longer than
// another thread takes to be woken, some ten times.
constexpr std::size_t max_bytes_here = 1 << 20;

}  // namespace

GroupCore::GroupCore(std::shared_ptr<rpc::AgentCore> core, GroupId id, Options options,
                     std::vector<rpc::AgentId> members, int rank, std::shared_ptr<SharedSpace> space,
                     std::optional<Hosts> hosts)
    : core_(std::move(core)),
      id_(id),
      options_(std::move(options)),
      members_(std::move(members)),
      rank_(rank),
      loop_(core_->pick_loop()),
      shared_(space == nullptr ? nullptr : std::make_unique<SharedQueue>(std::move(space))),
      hosts_(shared_ == nullptr ? std::nullopt : std::move(hosts)),
      devices_(*this, options_.devices),
      turns_([this](const std::exception_ptr& error) {
        fail_all(
            rpc::Error(rpc::ErrorKind::internal, prefix() + describe(rank_) + ": " + core_->text_of(error)),
            true);
      }),
      mailbox_(describe(rank)),
      values_(size(), [this](const std::map<int, std::string>& texts) { return difference(texts); }) {
  for (const rpc::AgentId& member : members_)
    peers_.push_back(
        rpc::Peer(core_, core_->route(member.name, {})).with({.timeout = rpc::no_timeout}).only(member));
}

GroupCore::~GroupCore() = default;

rpc::Future<void> GroupCore::start(Collective collective, bool inlined) {
  const auto exchange = std::make_shared<Exchange>(shared_from_this(), std::move(collective));
  auto future = exchange->future();
  if (backend() == GroupBackend::memory) {
    start_shared(exchange, inlined);
  } else {
    rpc::Callback begin = [self = shared_from_this(), exchange] { self->begin(exchange); };
    inlined ? turns_.run(std::move(begin)) : on_loop(std::move(begin));
  }
  return future;
}

// After the agent has ended, its loop may not run.
void GroupCore::on_loop(rpc::Callback job) {
  core_->ended() ? turns_.run(std::move(job)) : turns_.post(std::move(job), *loop_, shared_from_this());
}

void GroupCore::in_turn(rpc::Callback job) {
  core_->ended() ? turns_.run(std::move(job)) : turns_.run_one(std::move(job), *loop_, shared_from_this());
}

Party GroupCore::party_of(const Collective& collective) const {
  return {rank_, size(),
          collective.reduction ? collective.reduction->accumulator_size() : collective.memory.item_size,
          options_.bounds};
}

// Nothing that is small: there two ranks exchange their halves, and would have other bits. What tensors of 16
// bits are gathered in travels as their own type, so that messages of either need not be told apart.
std::optional<c10::ScalarType> GroupCore::wire_for(c10::ScalarType dtype, Party party,
                                                   const Layout& layout) const {
  if (!options_.wire_dtype || layout.operation != Operation::all_reduce ||
      agrees_by_itself(party, layout.elements))
    return std::nullopt;
  switch (dtype) {
    case c10::ScalarType::Float:
      return options_.wire_dtype;
    case c10::ScalarType::Half:
    case c10::ScalarType::BFloat16:
      return dtype;
    default:
      return std::nullopt;
  }
}

bool GroupCore::writes_early(const Collective& collective) const {
  return backend() == GroupBackend::messages && collective.layout.operation == Operation::all_reduce &&
         agrees_by_itself(party_of(collective), collective.layout.elements);
}

// --- One collective ---

std::optional<rpc::Error> GroupCore::refusal(const Exchange& exchange) const {
  if (ended_) return ended_;
  if (left_.empty()) return std::nullopt;
  return rpc::Error(rpc::ErrorKind::shut_down,
                    prefix() + describe(*left_.begin()) + " has left; " + exchange.text());
}

void GroupCore::begin(const ExchangePtr& exchange) {
  if (const auto refused = refusal(*exchange)) return exchange->fail(*refused);
  const std::uint64_t sequence = begun_++;
  running_[sequence] = exchange;
  exchange->start(
      sequence, [weak = std::weak_ptr(exchange), self = shared_from_this()](const std::exception_ptr& error) {
        if (const auto ended = weak.lock(); ended != nullptr && !ended->closed()) self->over(ended, error);
      });
  exchange->begin_limit();
  exchange->record();
  arm(exchange->deadline());
  if (auto early = early_.extract(sequence)) {
    early_messages_ -= early.mapped().count();
    early_bytes_ -= early.mapped().bytes;
    exchange->signatures = std::move(early.mapped().signatures);
    if (!exchange->signatures.empty()) differs(exchange);
    for (Early::Message& message : early.mapped().messages)
      take(exchange, message.from, message.label, message.hash, std::move(message.bytes));
  }
  if (!exchange->has_levels()) {
    if (!exchange->closed()) exchange->run().begin(*exchange);
    return;
  }
  // Also where it is known to be void: the other ranks of this host may wait for this one in its first level.
  levelled_.push_back(exchange);
  if (levelled_.size() == 1) begin_level();
}

void GroupCore::take(const ExchangePtr& exchange, int from, std::uint32_t label, std::uint64_t hash,
                     rpc::Buffer bytes) {
  if (exchange->closed()) return;
  if (hash != exchange->hash_from(from)) {
    const auto announced = exchange->announced(hash);
    if (!announced) return differs(exchange);
    return over(exchange, std::make_exception_ptr(
                              rpc::Error(rpc::ErrorKind::invalid_argument,
                                         describe(from) + " has " + std::to_string(*announced) +
                                             " elements for " + describe(rank_) + ", which expects " +
                                             std::to_string(exchange->expected_from(from)))));
  }
  const auto number = exchange->in_plan(from);
  if (!number)
    return over(exchange, std::make_exception_ptr(rpc::Error(rpc::ErrorKind::protocol_error,
                                                             "a message of another column of ranks")));
  exchange->run().deliver(*number, label, std::move(bytes));
}

// Nobody's result can come about any more: all tell all what they mean, and each ends when it knows.
void GroupCore::differs(const ExchangePtr& exchange) {
  if (!exchange->disagrees) {
    exchange->disagrees = true;
    exchange->close();
    exchange->signatures[rank_] = exchange->text();
    tell_others<&GroupService::disagree>(id_, exchange->sequence(), exchange->text());
    if (exchange->has_levels() && exchange->level == Exchange::Level::between) begin_last(exchange);
  }
  if (static_cast<int>(exchange->signatures.size()) < size()) return;
  running_.erase(exchange->sequence());
  exchange->fail(difference(exchange->signatures));
}

rpc::Error GroupCore::difference(const std::map<int, std::string>& signatures) const {
  std::map<std::string, std::vector<int>> meant;
  for (const auto& [rank, signature] : signatures) meant[signature].push_back(rank);
  std::string text;
  for (const auto& [signature, ranks] : meant) {
    text += text.empty() ? "" : "; ";
    for (const int rank : ranks) text += (rank == ranks.front() ? "" : ", ") + describe(rank);
    text += ": " + signature;
  }
  return rpc::Error(rpc::ErrorKind::invalid_argument,
                    prefix() + "the ranks do not mean the same collective: " + text);
}

void GroupCore::over(const ExchangePtr& exchange, const std::exception_ptr& error) {
  if (error == nullptr && exchange->has_levels()) return begin_last(exchange);
  if (error == nullptr) {
    running_.erase(exchange->sequence());
    return exchange->succeed();
  }
  fail_all(fault_of(*exchange, error), true);
}

// What the bytes of others, or their sizes, do not fit.
rpc::Error GroupCore::fault_of(const Exchange& exchange, const std::exception_ptr& error) const {
  rpc::ErrorKind kind = rpc::ErrorKind::protocol_error;
  try {
    std::rethrow_exception(error);
  } catch (const rpc::Error& known) {
    kind = known.kind();
  } catch (...) {
  }
  return rpc::Error(kind, prefix() + exchange.text() + ": " + core_->text_of(error));
}

// --- One collective, by levels ---

// Of the one whose turn it is: its first level, or its last. The ranks of a host come to the levels of all
// collectives in one order, since the next one waits for the end of this.
void GroupCore::begin_level() {
  const ExchangePtr exchange = levelled_.front();
  if (exchange->level == Exchange::Level::waiting) exchange->level = Exchange::Level::first;
  shared_->push(exchange->shared(), [self = shared_from_this(), exchange](SharedQueue::Outcome outcome) {
    self->turns_.run([self, exchange, outcome = std::move(outcome)]() mutable {
      self->level_over(exchange, std::move(outcome));
    });
  });
}

void GroupCore::begin_last(const ExchangePtr& exchange) {
  exchange->begin_last();
  begin_level();
}

void GroupCore::level_over(const ExchangePtr& exchange, SharedQueue::Outcome outcome) {
  if (!outcome.ok()) over(exchange, outcome.error());
  if (ended_) {
    if (!exchange->closed()) fail_written(exchange);
    return;
  }
  const bool same = outcome.value() != SharedRun::State::differs;
  if (!same && !exchange->disagrees) differs(exchange);
  // Where the ranks of this host mean the same, all of them come to the last level, whatever others mean.
  if (same && exchange->level == Exchange::Level::first) {
    if (exchange->disagrees || !exchange->has_plan()) return begin_last(exchange);
    exchange->level = Exchange::Level::between;
    return exchange->run().begin(*exchange);
  }
  if (exchange->disagrees) return next_level(exchange);
  running_.erase(exchange->sequence());
  exchange->succeed();
  next_level(exchange);
}

void GroupCore::next_level(const ExchangePtr& exchange) {
  if (levelled_.empty() || levelled_.front() != exchange) return;
  levelled_.pop_front();
  if (!levelled_.empty() && !ended_) begin_level();
}

// --- One collective, in shared memory ---

void GroupCore::start_shared(const ExchangePtr& exchange, bool inlined) {
  // A thread that others need, to hear of a death for one, does not wait here for a moment either.
  const bool may_wait = inlined && !rpc::OwnedThread::here() && !loop_->running_here();
  if (may_wait && exchange->shared()->bytes() <= max_bytes_here) {
    if (auto outcome = shared_->run_here(exchange->shared())) {
      const bool under_way = outcome->ok() && outcome->value() == SharedRun::State::under_way;
      if (!under_way) return shared_over(exchange, std::move(*outcome));
    }
    if (exchange->shared()->begun()) {
      turns_.run([self = shared_from_this(), exchange] {
        self->keep(exchange);
        self->shared_->go_on(exchange->shared(), self->when_over(exchange));
      });
      return;
    }
  }
  // Its place in the queue is taken here and now: what the program begins next comes after it.
  shared_->push(exchange->shared(), when_over(exchange));
  rpc::Callback keep = [self = shared_from_this(), exchange] { self->keep(exchange); };
  inlined ? turns_.run(std::move(keep)) : turns_.run_one(std::move(keep), *loop_, shared_from_this());
}

void GroupCore::keep(const ExchangePtr& exchange) {
  if (exchange->closed() || ended_) return;  // it is over already, or comes back stopped
  running_[exchange->sequence()] = exchange;
  exchange->begin_limit();
  exchange->record();
  arm(exchange->deadline());
  for (const int rank : std::set(left_))
    if (exchange->awaits(rank)) has_left(rank);
}

SharedQueue::Done GroupCore::when_over(const ExchangePtr& exchange) {
  return [self = shared_from_this(), exchange](SharedQueue::Outcome outcome) {
    self->turns_.run([self, exchange, outcome = std::move(outcome)]() mutable {
      self->running_.erase(exchange->sequence());
      self->shared_over(exchange, std::move(outcome));
    });
  };
}

void GroupCore::shared_over(const ExchangePtr& exchange, SharedQueue::Outcome outcome) {
  const auto fail = [&](std::exception_ptr error) {
    turns_.run([self = shared_from_this(), exchange, error = std::move(error)] {
      if (error != nullptr) self->fail_all(self->fault_of(*exchange, error), true);
      self->fail_written(exchange);
    });
  };
  if (!outcome.ok()) return fail(outcome.error());
  switch (outcome.value()) {
    case SharedRun::State::differs: {
      int rank = 0;
      for (const std::string& text : exchange->shared()->texts()) exchange->signatures[rank++] = text;
      return exchange->fail(difference(exchange->signatures));
    }
    case SharedRun::State::stopped:
      // Where an earlier one has failed the group may not have heard of it yet.
      return fail(shared_->failure());
    default:
      return exchange->succeed();
  }
}

// --- What members say ---

void GroupCore::data(const rpc::AgentId& from, std::uint64_t sequence, std::uint32_t label,
                     std::uint64_t hash, rpc::Buffer bytes) {
  const int rank = rank_of(from);
  if (rank < 0) return;
  turns_.run([self = shared_from_this(), rank, sequence, label, hash, bytes = std::move(bytes)]() mutable {
    if (self->ended_) return;
    if (sequence >= self->begun_) {
      Early& early = self->early_[sequence];
      const std::size_t size = bytes.size();
      early.messages.push_back({rank, label, hash, std::move(bytes)});
      self->kept_early(early, size);
    } else if (const auto found = self->running_.find(sequence); found != self->running_.end()) {
      self->take(ExchangePtr(found->second), rank, label, hash, std::move(bytes));
    }
  });
}

void GroupCore::kept_early(Early& early, std::size_t bytes) {
  early.bytes += bytes;
  ++early_messages_;
  early_bytes_ += bytes;
  if (early_messages_ <= options_.max_early_messages && early_bytes_ <= options_.max_early_bytes) return;
  fail_all(
      rpc::Error(rpc::ErrorKind::resource_exhausted,
                 prefix() + describe(rank_) + " has begun " + std::to_string(begun_) +
                     " collectives; for later ones other members have sent " +
                     std::to_string(early_messages_) + " messages of " + std::to_string(early_bytes_) +
                     " bytes, more than max_early_messages (" + std::to_string(options_.max_early_messages) +
                     ") or max_early_bytes (" + std::to_string(options_.max_early_bytes) +
                     ") of GroupOptions: wait for results before further collectives, or raise the limit"),
      true);
}

void GroupCore::disagree(const rpc::AgentId& from, std::uint64_t sequence, std::string signature) {
  const int rank = rank_of(from);
  if (rank < 0) return;
  turns_.run([self = shared_from_this(), rank, sequence, signature = std::move(signature)]() mutable {
    if (self->ended_) return;
    if (sequence >= self->begun_) {
      Early& early = self->early_[sequence];
      const std::size_t size = signature.size();
      if (early.signatures.emplace(rank, std::move(signature)).second) self->kept_early(early, size);
    } else if (const auto found = self->running_.find(sequence); found != self->running_.end()) {
      const ExchangePtr exchange = found->second;
      exchange->signatures[rank] = std::move(signature);
      self->differs(exchange);
    }
  });
}

// --- Names ---

int GroupCore::rank_of(const rpc::AgentId& member) const {
  const auto found = std::find(members_.begin(), members_.end(), member);
  return found == members_.end() ? -1 : static_cast<int>(found - members_.begin());
}

std::string GroupCore::describe(int rank) const {
  return "rank " + std::to_string(rank) + " (" + members_[static_cast<std::size_t>(rank)].name + ")";
}

}  // namespace weft::collectives
