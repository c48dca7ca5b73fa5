#include <weft/parallel/collectives/internal/group/group_core.h>

#include <weft/parallel/collectives/internal/group/group_notices.h>
#include <weft/parallel/collectives/operation/internal/signature_bytes.h>
#include <weft/rpc/core/when_all.h>

#include <algorithm>

namespace weft::collectives {
namespace {

// The text of a collective, for people who diagnose a hanging group.
template <class F>
auto with_operation(const Exchange& exchange, F f) {
  const Collective& collective = exchange.collective;
  const SignatureBytes meaning(collective.signature);
  return f(FlightOperation{.kind = FlightKind::collective,
                           .sequence = exchange.sequence(),
                           .meaning = meaning.view(),
                           .render = &SignatureBytes::text,
                           .site = collective.site,
                           .bytes = collective.layout.elements * collective.memory.item_size,
                           .begun = exchange.created,
                           .moved = exchange.arrived()});
}

}  // namespace

GroupCore::GroupCore(std::shared_ptr<rpc::AgentCore> core, GroupId id, Options options,
                     std::vector<rpc::AgentId> members, int rank, GroupBackend kind,
                     std::unique_ptr<Backend> backend)
    : core_(std::move(core)),
      id_(id),
      options_(std::move(options)),
      members_(std::move(members)),
      rank_(rank),
      loop_(core_->pick_loop()),
      kind_(kind),
      backend_(std::move(backend)),
      devices_(*this, options_.devices),
      turns_([this](const std::exception_ptr& error) {
        fail_all(rpc::Error(rpc::ErrorKind::internal,
                            prefix() + describe(rank_) + ": " + core_->hooks().text_of(error)),
                 true);
      }),
      mailbox_(describe(rank)),
      values_(size(), [this](const std::map<int, std::string>& texts) { return difference(texts); }) {
  for (const rpc::AgentId& member : members_)
    peers_.push_back(rpc::Peer(core_, core_->routes().to_name(member.name, {}))
                         .with({.timeout = rpc::no_timeout})
                         .only(member));
}

GroupCore::~GroupCore() = default;

// If the agent has ended, runs the job at once, because the loop may not run any more.
void GroupCore::on_loop(rpc::Callback job) {
  core_->ended() ? turns_.run(std::move(job)) : turns_.post(std::move(job), *loop_, shared_from_this());
}

void GroupCore::in_turn(rpc::Callback job) {
  core_->ended() ? turns_.run(std::move(job)) : turns_.run_one(std::move(job), *loop_, shared_from_this());
}

// --- One collective ---

rpc::Future<void> GroupCore::start(Collective collective, bool inlined) {
  const ExchangePtr exchange = backend_->make(shared_from_this(), std::move(collective));
  exchange->promise.on_cancel([this, weak = std::weak_ptr(exchange)] {  // the exchange keeps this group
    if (const auto self = weak.lock()) abort(describe(rank_) + " aborted " + self->text());
  });
  auto future = exchange->promise.future();
  exchange->start(inlined);
  return future;
}

// Nothing waits for this rank's part, so it has no deadline.
rpc::Future<void> GroupCore::decline(Operation operation, std::optional<c10::DeviceType> device,
                                     std::source_location site, const std::exception_ptr& why) {
  Collective refused;
  refused.signature.operation = operation;
  refused.signature.device = device;
  refused.signature.refused = true;
  refused.site = site;
  refused.timeout = std::chrono::nanoseconds::max();
  refused.refusal = core_->hooks().text_of(why);
  (void)start(std::move(refused));
  return rpc::Future<void>::made(rpc::Result<void>(why));
}

std::optional<rpc::Error> GroupCore::refusal(const Exchange& exchange) const {
  if (ended_) return ended_;
  if (left_.empty()) return std::nullopt;
  return rpc::Error(rpc::ErrorKind::shut_down,
                    prefix() + describe(*left_.begin()) + " has left; " + exchange.text());
}

void GroupCore::begin(ExchangePtr exchange, bool inlined) {
  rpc::Callback begin = [self = shared_from_this(), exchange = std::move(exchange)] {
    self->begin_numbered(exchange);
  };
  inlined ? turns_.run(std::move(begin)) : on_loop(std::move(begin));
}

void GroupCore::begin_numbered(const ExchangePtr& exchange) {
  if (const auto refused = refusal(*exchange)) return fail_one(*exchange, *refused);
  const std::uint64_t sequence = exchange->number = begun_++;
  watch(exchange);
  if (exchange->collective.signature.refused) differs(exchange);
  if (auto early = early_.extract(sequence)) {
    early_messages_ -= early.mapped().count();
    early_bytes_ -= early.mapped().bytes;
    const bool known = !early.mapped().signatures.empty();
    exchange->signatures.merge(early.mapped().signatures);
    if (known) differs(exchange);
    for (Early::Message& message : early.mapped().messages)
      take(exchange, message.from, message.label, message.hash, std::move(message.bytes));
  }
  if (!ended_) exchange->begin();
}

void GroupCore::keep(const ExchangePtr& exchange) {
  if (exchange->closed || ended_) return;  // it has completed, or its backend will report that it has stopped
  watch(exchange);
  for (const int rank : std::set(left_))
    if (exchange->awaits(rank)) has_left(rank);
}

void GroupCore::watch(const ExchangePtr& exchange) {
  exchange->kept = true;
  running_[exchange->sequence()] = exchange;
  exchange->deadline = rpc::later(loop_->now(), limit_of(*exchange));
  if (options_.stall_warning.count() > 0 && !exchange->collective.signature.refused)
    exchange->warns_at = rpc::later(loop_->now(), options_.stall_warning);
  record(*exchange);
  arm(std::min(exchange->deadline, exchange->warns_at));
}

void GroupCore::send_part(ExchangePtr exchange, int to, std::uint32_t label, const rpc::Buffer& bytes,
                          rpc::Callback left) {
  const std::uint64_t sequence = exchange->sequence(), hash = exchange->hash + exchange->elements_for(to);
  post<&GroupService::data>(
      peers_[static_cast<std::size_t>(to)],
      [self = shared_from_this(), exchange = std::move(exchange), to,
       left = std::move(left)](rpc::Result<void>&& sent) mutable {
        if (sent.ok()) return self->turns_.run(std::move(left));
        self->turns_.run([self, to, error = sent.error()] { self->not_sent(to, error); });
      },
      id_, sequence, label, hash, bytes);
}

void GroupCore::take(const ExchangePtr& exchange, int from, std::uint32_t label, std::uint64_t hash,
                     rpc::Buffer bytes) {
  if (exchange->closed) return;
  const auto announced = exchange->announced(hash);
  if (!announced) return differs(exchange);
  const std::uint64_t expected = exchange->elements_from(from);
  if (*announced == expected) return exchange->deliver(from, label, std::move(bytes));
  failed(exchange, std::make_exception_ptr(rpc::Error(rpc::ErrorKind::invalid_argument,
                                                      describe(from) + " has " + std::to_string(*announced) +
                                                          " elements for " + describe(rank_) +
                                                          ", which expects " + std::to_string(expected))));
}

// The collective cannot complete on any rank: all ranks exchange their signatures, and it fails on each rank
// that has all of them.
void GroupCore::differs(const ExchangePtr& exchange) {
  if (!exchange->disagrees) {
    exchange->disagrees = true;
    exchange->close();
    exchange->signatures[rank_] = exchange->text();
    tell_others<&GroupService::disagree>(id_, exchange->sequence(), exchange->text());
    exchange->on_difference();
  }
  if (static_cast<int>(exchange->signatures.size()) == size()) differed(exchange);
}

void GroupCore::differed(const ExchangePtr& exchange) {
  if (exchange->kept) running_.erase(exchange->sequence());
  fail_one(*exchange, difference(exchange->signatures));
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
                    prefix() + "the ranks call different collectives: " + text);
}

void GroupCore::failed(const ExchangePtr& exchange, const std::exception_ptr& error) {
  if (error != nullptr) fail_all(fault_of(*exchange, error), true);
  if (!exchange->closed && !exchange->in_use) fail_written(exchange);
}

// Returns the error of an exchange for which the bytes of other ranks, or their sizes, do not fit.
rpc::Error GroupCore::fault_of(const Exchange& exchange, const std::exception_ptr& error) const {
  rpc::ErrorKind kind = rpc::ErrorKind::protocol_error;
  try {
    std::rethrow_exception(error);
  } catch (const rpc::Error& known) {
    kind = known.kind();
  } catch (...) {
  }
  return rpc::Error(kind, prefix() + exchange.text() + ": " + core_->hooks().text_of(error));
}

void GroupCore::done(const ExchangePtr& exchange) {
  if (exchange->kept) running_.erase(exchange->sequence());
  exchange->closed = true;
  auto result = rpc::capture([&] {
    if (exchange->collective.finish) exchange->collective.finish();
  });
  if (exchange->ticket) {
    record_arrival(*exchange);
    recorder_.done(*exchange->ticket);
  } else {
    with_operation(*exchange, [this](const FlightOperation& operation) { recorder_.note(operation); });
  }
  exchange->promise.complete(std::move(result));
}

void GroupCore::fail_one(Exchange& exchange, const rpc::Error& error) {
  exchange.close();
  record(exchange);
  record_arrival(exchange);
  recorder_.failed(*exchange.ticket, error.what());
  exchange.promise.fail(error);
}

// Records the operation once, if other ranks may see it in flight.
void GroupCore::record(Exchange& exchange) {
  if (!exchange.ticket)
    exchange.ticket = with_operation(
        exchange, [this](const FlightOperation& operation) { return recorder_.begin(operation); });
}

void GroupCore::record_arrival(Exchange& exchange) {
  if (const auto since = exchange.arrived(); since != 0) recorder_.moving(*exchange.ticket, since);
}

void GroupCore::record_awaited() {
  for (const auto& [sequence, exchange] : running_) {
    if (exchange->closed) continue;
    record_arrival(*exchange);
    recorder_.waits_for(*exchange->ticket, awaited_by(*exchange));
  }
}

std::vector<int> GroupCore::awaited_by(Exchange& exchange) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < size(); ++rank)
    if (rank != rank_ && exchange.awaits(rank)) ranks.push_back(rank);
  return ranks;
}

// --- Messages of members ---

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
