#include <weft/parallel/collectives/group_core.h>

#include <weft/parallel/collectives/group_service.h>
#include <weft/parallel/collectives/plan/choice.h>
#include <weft/rpc/core/when_all.h>

#include <algorithm>

namespace weft::collectives {
namespace {

// How long a member is given to say whether it has begun what another waits for.
constexpr std::chrono::seconds patience_for_standing{5};

// Up to so much a collective in shared memory runs on the thread that begins it: it takes no longer than
// another thread takes to be woken, some ten times.
constexpr std::size_t most_bytes_here = 1 << 20;

// A notification; `sent` is told once it has left, or why it never will.
template <auto Method, class Sent, class... Arguments>
void post(const rpc::Peer& peer, Sent sent, const Arguments&... arguments) {
  using Found = rpc::Peer::FoundMethod<Method>;
  rpc::OutgoingCall call = peer.make_call(Found::name, Found::id, sizeof...(Arguments));
  call.notify = true;
  rpc::Peer::encode<typename Found::Type>(call, arguments...);
  peer.start_typed<void>(std::move(call), rpc::Peer::Decode<void>{}).then(std::move(sent));
}

std::string seconds_text(std::chrono::nanoseconds time) {
  std::string text = std::to_string(std::chrono::duration<double>(time).count());
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text + " s";
}

}  // namespace

// Its run's messages go through its group.
class GroupCore::Exchange final : public Outbox, public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(std::shared_ptr<GroupCore> group, Collective collective)
      : group_(std::move(group)), collective_(std::move(collective)), hash_(collective_.signature.hash()) {
    if (SharedSpace* const space = group_->space()) shared_.emplace(*space, collective_);
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
    Plan plan = plan_of(group_->party_of(collective_), collective_.layout);
    run_ = std::make_shared<PlanRun>(group_->rank(), group_->size(), std::move(plan), collective_.memory,
                                     collective_.reduction, std::move(done));
  }
  void send(int to, std::uint32_t label, std::span<const std::byte> bytes, rpc::Job left) override {
    // What is sent is the run's memory, which `left` keeps until it has run; nobody writes there meanwhile.
    const rpc::Buffer lent(run_, const_cast<std::byte*>(bytes.data()), bytes.size());
    post<&GroupService::data>(
        group_->peers_[static_cast<std::size_t>(to)],
        [self = shared_from_this(), to, left = std::move(left)](rpc::Result<void>&& sent) mutable {
          GroupCore& group = *self->group_;
          if (sent.ok()) return group.turns_.run(std::move(left));
          group.turns_.run([self, to, error = sent.error()] { self->group_->not_sent(to, error); });
        },
        group_->id_, sequence_, label, hash_, lent);
  }

  // The run is over, or is ended, and nobody is told of it any more.
  void close() {
    closed_ = true;
    if (run_ != nullptr)
      run_->fail(std::make_exception_ptr(rpc::Error(rpc::ErrorKind::aborted, "the collective is over")));
  }
  void fail(const rpc::Error& error) {
    close();
    promise_.fail(error);
  }
  void succeed() {
    closed_ = true;
    promise_.complete(rpc::capture([this] {
      if (collective_.finish) collective_.finish();
    }));
  }

  std::uint64_t sequence() const { return shared_ ? shared_->sequence() : sequence_; }
  std::uint64_t hash() const { return hash_; }
  std::string text() const { return collective_.text(); }
  std::chrono::nanoseconds limit() const { return collective_.deadline.value_or(group_->deadline_); }
  void begin_limit() { deadline_ = rpc::later(group_->loop_->now(), limit()); }
  rpc::Clock::time_point deadline() const { return deadline_; }
  PlanRun& run() { return *run_; }
  SharedQueue::RunPtr shared() { return {shared_from_this(), &*shared_}; }
  bool closed() const { return closed_; }
  bool awaits(int rank) {
    if (shared_) return shared_->awaits(rank);
    if (disagrees) return !signatures.contains(rank);
    const std::vector<int> awaited = run_->awaited();
    return std::find(awaited.begin(), awaited.end(), rank) != awaited.end();
  }

  bool disagrees = false;
  bool asking = false;                    // who is missing
  std::map<int, std::string> signatures;  // of those that have told theirs

 private:
  const std::shared_ptr<GroupCore> group_;
  Collective collective_;
  const std::uint64_t hash_;
  rpc::Promise<void> promise_;
  std::uint64_t sequence_ = 0;
  rpc::Clock::time_point deadline_;
  std::shared_ptr<PlanRun> run_;     // of one that is a plan
  std::optional<SharedRun> shared_;  // of one in shared memory
  bool closed_ = false;
};

GroupCore::GroupCore(std::shared_ptr<rpc::AgentCore> core, GroupId id, std::string name,
                     std::vector<rpc::AgentId> members, int rank, std::chrono::nanoseconds deadline,
                     std::shared_ptr<SharedSpace> space)
    : core_(std::move(core)),
      id_(id),
      name_(std::move(name)),
      members_(std::move(members)),
      rank_(rank),
      deadline_(deadline),
      loop_(core_->pick_loop()),
      shared_(space == nullptr ? nullptr : std::make_unique<SharedQueue>(std::move(space))),
      mailbox_(describe(rank)) {
  for (const rpc::AgentId& member : members_)
    peers_.push_back(
        rpc::Peer(core_, core_->route(member.name, {})).with({.deadline = rpc::no_deadline}).only(member));
}

GroupCore::~GroupCore() = default;

rpc::Future<void> GroupCore::start(Collective collective) {
  const auto exchange = std::make_shared<Exchange>(shared_from_this(), std::move(collective));
  auto future = exchange->future();
  if (shared_ != nullptr) {
    start_shared(exchange);
  } else {
    turns_.run([self = shared_from_this(), exchange] { self->begin(exchange); });
  }
  return future;
}

Party GroupCore::party_of(const Collective& collective) const {
  return {rank_, size(),
          collective.reduction ? collective.reduction->accumulator_size() : collective.memory.item_size};
}

bool GroupCore::writes_early(const Collective& collective) const {
  return shared_ == nullptr && collective.layout.operation == Operation::all_reduce &&
         agrees_by_itself(party_of(collective), collective.layout.elements);
}

void GroupCore::abort(const std::string& reason) {
  turns_.run([self = shared_from_this(), reason] {
    self->fail_all(rpc::Error(rpc::ErrorKind::aborted, self->prefix() + reason), true);
  });
}

void GroupCore::leave() {
  turns_.run([self = shared_from_this()] {
    if (self->ended_) return;
    const rpc::Error error(rpc::ErrorKind::shut_down,
                           self->prefix() + self->describe(self->rank_) + " has left");
    const bool idle = self->running_.empty();
    if (idle) self->tell_others<&GroupService::left>(self->id_);
    self->fail_all(error, !idle);
  });
}

void GroupCore::end() {
  turns_.run([self = shared_from_this()] {
    self->fail_all(rpc::Error(rpc::ErrorKind::shut_down, self->prefix() + "this agent has ended"), false);
  });
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
  arm(exchange->deadline());
  if (auto early = early_.extract(sequence)) {
    exchange->signatures = std::move(early.mapped().signatures);
    if (!exchange->signatures.empty()) differs(exchange);
    for (Early::Message& message : early.mapped().messages)
      take(exchange, message.from, message.label, message.hash, std::move(message.bytes));
  }
  if (!exchange->closed()) exchange->run().begin(*exchange);
}

void GroupCore::take(const ExchangePtr& exchange, int from, std::uint32_t label, std::uint64_t hash,
                     rpc::Buffer bytes) {
  if (exchange->closed()) return;
  if (hash != exchange->hash()) return differs(exchange);
  exchange->run().deliver(from, label, std::move(bytes));
}

// Nobody's result can come about any more: all tell all what they mean, and each ends when it knows.
void GroupCore::differs(const ExchangePtr& exchange) {
  if (!exchange->disagrees) {
    exchange->disagrees = true;
    exchange->close();
    exchange->signatures[rank_] = exchange->text();
    tell_others<&GroupService::disagree>(id_, exchange->sequence(), exchange->text());
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
  if (error == nullptr) {
    running_.erase(exchange->sequence());
    return exchange->succeed();
  }
  fail_all(
      rpc::Error(rpc::ErrorKind::protocol_error, prefix() + exchange->text() + ": " + core_->text_of(error)),
      true);
}

// --- One collective, in shared memory ---

void GroupCore::start_shared(const ExchangePtr& exchange) {
  // A thread that others need, to hear of a death for one, does not wait here for a moment either.
  const bool may_wait = !rpc::OwnedThread::here() && !loop_->running_here();
  if (may_wait && exchange->shared()->bytes() <= most_bytes_here) {
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
  turns_.run([self = shared_from_this(), exchange] { self->push_shared(exchange); });
}

void GroupCore::keep(const ExchangePtr& exchange) {
  running_[exchange->sequence()] = exchange;
  exchange->begin_limit();
  arm(exchange->deadline());
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
  const auto fail = [&](std::optional<rpc::Error> error) {
    turns_.run([self = shared_from_this(), exchange, error = std::move(error)] {
      if (error) self->fail_all(*error, true);
      exchange->fail(*self->ended_);
    });
  };
  if (!outcome.ok())
    return fail(rpc::Error(rpc::ErrorKind::protocol_error,
                           prefix() + exchange->text() + ": " + core_->text_of(outcome.error())));
  switch (outcome.value()) {
    case SharedRun::State::differs: {
      int rank = 0;
      for (std::string& text : exchange->shared()->texts()) exchange->signatures[rank++] = std::move(text);
      return exchange->fail(difference(exchange->signatures));
    }
    case SharedRun::State::stopped:
      return fail(std::nullopt);
    default:
      return exchange->succeed();
  }
}

void GroupCore::push_shared(const ExchangePtr& exchange) {
  if (const auto refused = refusal(*exchange)) return exchange->fail(*refused);
  shared_->push(exchange->shared(), when_over(exchange));
  keep(exchange);
}

// --- Messages between two ---

rpc::Future<void> GroupCore::send(int to, Message message) {
  rpc::Promise<void> promise;
  const std::string what = "send(" + message.type + ", to " + std::to_string(to) + ") at " + message.site;
  promise.on_cancel([weak = weak_from_this(), what] {
    if (const auto self = weak.lock()) self->abort(self->describe(self->rank_) + " aborted " + what);
  });
  auto future = promise.future();
  turns_.run([self = shared_from_this(), to, what, message = std::move(message),
              promise = std::move(promise)]() mutable {
    if (self->ended_) return promise.fail(*self->ended_);
    if (self->left_.contains(to))
      return promise.fail(
          rpc::Error(rpc::ErrorKind::shut_down, self->prefix() + self->describe(to) + " has left; " + what));
    const std::uint64_t number = self->sends_++;
    const auto deadline = rpc::later(self->loop_->now(), message.deadline.value_or(self->deadline_));
    self->sent_.emplace(number, Sent{to, what, deadline, std::move(promise)});
    self->arm(deadline);
    self->peers_[static_cast<std::size_t>(to)]
        .call<&GroupService::message>(self->id_, message.tag, message.type, message.bytes)
        .then([self, number](rpc::Result<void>&& result) {
          self->turns_.run([self, number, result = std::move(result)]() mutable {
            self->send_over(number, std::move(result));
          });
        });
  });
  return future;
}

void GroupCore::send_over(std::uint64_t number, rpc::Result<void> result) {
  const auto found = sent_.find(number);
  if (found == sent_.end()) return;
  try {
    if (!result.ok()) std::rethrow_exception(result.error());
  } catch (const rpc::RemoteError& refused) {
    // What the receiver says of this message; its group, where that has ended, has said so itself.
    Sent sent = std::move(found->second);
    sent_.erase(found);
    return sent.promise.fail(rpc::Error(refused.kind(), refused.detail()));
  } catch (...) {
    return not_sent(found->second.to, std::current_exception());
  }
  rpc::Promise<void> promise = std::move(found->second.promise);
  sent_.erase(found);
  promise.complete(rpc::Result<void>{});
}

rpc::Future<int> GroupCore::receive(std::optional<int> from, Message message) {
  auto promise = std::make_shared<rpc::Promise<int>>();
  const std::string what =
      "recv(" + message.type + ", from " + (from ? std::to_string(*from) : "any") + ") at " + message.site;
  promise->on_cancel([weak = weak_from_this(), what] {
    if (const auto self = weak.lock()) self->abort(self->describe(self->rank_) + " aborted " + what);
  });
  auto future = promise->future();
  turns_.run([self = shared_from_this(), from, what, message = std::move(message), promise]() mutable {
    if (self->ended_) return promise->fail(*self->ended_);
    const auto deadline = rpc::later(self->loop_->now(), message.deadline.value_or(self->deadline_));
    Mailbox::Receive wanted{.from = from,
                            .tag = message.tag,
                            .type = std::move(message.type),
                            .into = message.bytes.data(),
                            .size = message.bytes.size(),
                            .what = what,
                            .deadline = deadline};
    wanted.done = [promise, kept = message.bytes](rpc::Result<int> result) {
      promise->complete(std::move(result));
    };
    self->mailbox_.receive(std::move(wanted));
    self->arm(deadline);
    for (const int rank : std::set(self->left_))
      if (self->mailbox_.awaits(rank)) self->has_left(rank);
  });
  return future;
}

rpc::Future<void> GroupCore::message(const rpc::AgentId& from, std::uint64_t tag, std::string type,
                                     rpc::Buffer bytes) {
  const int rank = rank_of(from);
  if (rank < 0)
    return rpc::Future<void>::made(std::make_exception_ptr(
        rpc::Error(rpc::ErrorKind::permission_denied, prefix() + from.name + " is no member")));
  auto promise = std::make_shared<rpc::Promise<void>>();
  auto future = promise->future();
  turns_.run([self = shared_from_this(), promise, rank, tag, type = std::move(type),
              bytes = std::move(bytes)]() mutable {
    if (self->ended_) return promise->fail(*self->ended_);
    self->mailbox_.deliver(
        {.from = rank,
         .tag = tag,
         .type = std::move(type),
         .bytes = std::move(bytes),
         .taken = [promise](rpc::Result<void> taken) { promise->complete(std::move(taken)); }});
  });
  return future;
}

// --- What members say ---

void GroupCore::data(const rpc::AgentId& from, std::uint64_t sequence, std::uint32_t label,
                     std::uint64_t hash, rpc::Buffer bytes) {
  const int rank = rank_of(from);
  if (rank < 0) return;
  turns_.run([self = shared_from_this(), rank, sequence, label, hash, bytes = std::move(bytes)]() mutable {
    if (self->ended_) return;
    if (sequence >= self->begun_) {
      self->early_[sequence].messages.push_back({rank, label, hash, std::move(bytes)});
    } else if (const auto found = self->running_.find(sequence); found != self->running_.end()) {
      self->take(ExchangePtr(found->second), rank, label, hash, std::move(bytes));
    }
  });
}

void GroupCore::disagree(const rpc::AgentId& from, std::uint64_t sequence, std::string signature) {
  const int rank = rank_of(from);
  if (rank < 0) return;
  turns_.run([self = shared_from_this(), rank, sequence, signature = std::move(signature)]() mutable {
    if (self->ended_) return;
    if (sequence >= self->begun_) {
      self->early_[sequence].signatures[rank] = std::move(signature);
    } else if (const auto found = self->running_.find(sequence); found != self->running_.end()) {
      const ExchangePtr exchange = found->second;
      exchange->signatures[rank] = std::move(signature);
      self->differs(exchange);
    }
  });
}

void GroupCore::failed(const rpc::AgentId& from, rpc::ErrorKind kind, std::string text) {
  if (rank_of(from) < 0) return;
  turns_.run([self = shared_from_this(), error = rpc::Error(kind, std::move(text))] {
    self->fail_all(error, false);
  });
}

// --- Ends ---

void GroupCore::peer_gone(const rpc::AgentId& peer, const rpc::Error& reason) {
  const int rank = rank_of(peer);
  if (rank < 0) return;
  turns_.run([self = shared_from_this(), rank, reason] {
    if (reason.kind() != rpc::ErrorKind::shut_down)
      return self->fail_all(rpc::Error(rpc::ErrorKind::peer_lost,
                                       self->prefix() + self->describe(rank) + " was lost: " + reason.what()),
                            true);
    self->has_left(rank);
  });
}

void GroupCore::left(const rpc::AgentId& from) {
  const int rank = rank_of(from);
  if (rank < 0) return;
  turns_.run([self = shared_from_this(), rank] { self->has_left(rank); });
}

void GroupCore::has_left(int rank) {
  left_.insert(rank);
  if (shared_ != nullptr) shared_->take_none_here();
  if (is_awaited(rank))
    fail_all(rpc::Error(rpc::ErrorKind::shut_down, prefix() + describe(rank) + " left before all was done"),
             true);
}

bool GroupCore::is_awaited(int rank) const {
  if (mailbox_.awaits(rank)) return true;
  if (std::any_of(sent_.begin(), sent_.end(), [&](const auto& entry) { return entry.second.to == rank; }))
    return true;
  return std::any_of(running_.begin(), running_.end(),
                     [&](const auto& entry) { return entry.second->awaits(rank); });
}

void GroupCore::fail_all(const rpc::Error& error, bool tell) {
  if (ended_) return;
  ended_ = error;
  early_.clear();
  if (tell) tell_others<&GroupService::failed>(id_, error.kind(), std::string(error.what()));
  if (shared_ != nullptr) {
    shared_->stop();  // what is under way there ends when nothing is written to any more
  } else {
    for (const auto& [sequence, exchange] : std::exchange(running_, {})) exchange->fail(error);
  }
  mailbox_.fail(error);
  for (auto& [number, sent] : std::exchange(sent_, {})) sent.promise.fail(error);
}

template <auto Method, class... Arguments>
void GroupCore::tell_others(const Arguments&... arguments) {
  for (int rank = 0; rank < size(); ++rank)
    if (rank != rank_ && !left_.contains(rank))
      post<Method>(peers_[static_cast<std::size_t>(rank)], [](rpc::Result<void>&&) {}, arguments...);
}

// Who cannot be reached is lost. In a job of fixed size the one lost may be another: the text names it.
void GroupCore::not_sent(int to, const std::exception_ptr& error) {
  rpc::ErrorKind kind = rpc::ErrorKind::internal;
  try {
    std::rethrow_exception(error);
  } catch (const rpc::Error& known) {
    kind = known.kind() == rpc::ErrorKind::unavailable ? rpc::ErrorKind::peer_lost : known.kind();
  } catch (...) {
  }
  fail_all(rpc::Error(kind,
                      prefix() + "a message to " + describe(to) + " did not leave: " + core_->text_of(error)),
           true);
}

// --- Deadlines ---

// The earliest is enough: it looks at all, and asks for the next.
void GroupCore::arm(rpc::Clock::time_point when) {
  if (when == rpc::Clock::time_point::max() || (armed_ && *armed_ <= when)) return;
  armed_ = when;
  loop_->post([weak = weak_from_this(), loop = std::weak_ptr(loop_), when] {
    const auto here = loop.lock();
    if (here == nullptr) return;
    here->schedule(when, [weak] {
      if (const auto self = weak.lock()) self->turns_.run([self] { self->look_at_deadlines(); });
    });
  });
}

void GroupCore::look_at_deadlines() {
  armed_.reset();
  const rpc::Clock::time_point now = loop_->now();
  std::optional<rpc::Clock::time_point> next;
  for (const auto& [sequence, exchange] : std::map(running_)) {
    if (exchange->deadline() > now) {
      next = next ? std::min(*next, exchange->deadline()) : exchange->deadline();
    } else if (!std::exchange(exchange->asking, true)) {
      ask_who_is_missing(exchange);
    }
  }
  const auto too_late = [&](const std::string& what) {
    fail_all(rpc::Error(rpc::ErrorKind::deadline_exceeded,
                        prefix() + describe(rank_) + ": " + what + " was not done in time"),
             true);
  };
  if (const auto* receive = mailbox_.overdue(now)) return too_late(std::string(receive->what));
  for (const auto& [number, sent] : sent_)
    if (sent.deadline <= now) return too_late(std::string(sent.what));
  if (const auto deadline = mailbox_.next_deadline()) next = next ? std::min(*next, *deadline) : deadline;
  for (const auto& [number, sent] : sent_) next = next ? std::min(*next, sent.deadline) : sent.deadline;
  if (next) arm(*next);
}

// All are asked; those that do not answer soon are missing too.
void GroupCore::ask_who_is_missing(const ExchangePtr& exchange) {
  struct Answers {
    std::size_t open;
    std::map<int, std::string> missing;
  };
  const auto answers = std::make_shared<Answers>(Answers{members_.size(), {}});
  const auto answered = [self = shared_from_this(), exchange, answers](int rank, const char* fault) {
    if (fault != nullptr) answers->missing[rank] = self->describe(rank) + " " + fault;
    if (--answers->open != 0 || !self->running_.contains(exchange->sequence())) return;
    std::string who;
    for (const auto& [missing, text] : answers->missing) who += (who.empty() ? "" : ", ") + text;
    if (who.empty()) who = "all ranks have begun it";
    self->fail_all(rpc::Error(rpc::ErrorKind::deadline_exceeded,
                              self->prefix() + exchange->text() + " was not done within " +
                                  seconds_text(exchange->limit()) + ": " + who),
                   true);
  };
  for (int rank = 0; rank < size(); ++rank) {
    if (rank == rank_) {
      answered(rank, nullptr);
      continue;
    }
    peers_[static_cast<std::size_t>(rank)]
        .with({.deadline = patience_for_standing})
        .template call<&GroupService::standing>(id_, exchange->sequence())
        .then([self = shared_from_this(), answered, rank](rpc::Result<bool>&& begun) {
          const char* const fault = !begun.ok()     ? "does not answer"
                                    : begun.value() ? nullptr
                                                    : "has not begun it";
          self->turns_.run([answered, rank, fault] { answered(rank, fault); });
        });
  }
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
