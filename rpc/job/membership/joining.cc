#include <weft/rpc/job/membership/joining.h>

#include <weft/rpc/call/invoke.h>
#include <weft/rpc/core/while_alive.h>
#include <weft/rpc/job/membership/job_membership.h>
#include <weft/rpc/job/store/program_store.h>
#include <weft/rpc/job/store/remote_store.h>
#include <weft/rpc/transport/address.h>

#include <thread>

namespace weft::rpc::detail {
namespace {

constexpr auto retry_interval = std::chrono::milliseconds{100};
// The interval at which a wait for the host, or for the end of an earlier incarnation, checks whether to
// stop.
constexpr auto look_up_interval = std::chrono::seconds{1};
constexpr auto ping_timeout = std::chrono::seconds{2};
constexpr int leases_to_wait = 3;
constexpr auto program_key = "host";  // in the program's store, after the prefix

std::string no_answer_of_store(const Rendezvous& rendezvous) {
  return "the job's store (" + title_of_store(rendezvous) + ") has not answered";
}

// The value of the key in the program's store: the name of rank 0, and its record.
std::string program_value(const MemberRecord& host) { return host.name + "\n" + to_text(host); }
MemberRecord program_host(const std::string& value) {
  const std::size_t end = std::min(value.find('\n'), value.size());
  return from_text(value.substr(0, end), value.substr(std::min(end + 1, value.size())));
}

// The result of a function of the program's store, whose exceptions may be of any type.
template <class T>
Result<T> answer_of(const std::function<T()>& ask) {
  const std::string prefix = "the program's store failed: ";
  try {
    if constexpr (std::is_void_v<T>) {
      ask();
      return {};
    } else {
      return ask();
    }
  } catch (const Error& error) {
    return Error(error.kind(), prefix + error.what());
  } catch (const std::exception& error) {
    return Error(ErrorKind::unavailable, prefix + error.what());
  } catch (...) {
    return Error(ErrorKind::unavailable, prefix + "an exception of an unknown type");
  }
}

}  // namespace

Joining::Joining(std::shared_ptr<AgentCore> core, const Rendezvous& rendezvous, const StoreAccess& access,
                 MetHost met_host, std::function<void(const Error&)> lost)
    : core_(std::move(core)),
      rendezvous_(rendezvous),
      met_host_(std::move(met_host)),
      lost_(std::move(lost)),
      access_(access),
      obstacle_(no_answer_of_store(rendezvous)) {}

std::vector<std::string> Joining::published_addresses() const {
  std::vector<std::string> published;
  for (const std::string& text : core_->addresses()) {
    Address address = Address::parse(text);
    // Peers cannot connect to the wildcard address. They get the address from which this host reaches the
    // store; for the host itself, that is the store's address, if the store has one.
    if (address.scheme == "tcp" && is_wildcard(address.host))
      address.host =
          is_host() && access_.with_host && !rendezvous_.store.empty() && !is_wildcard(access_.towards)
              ? access_.towards
              : local_address_towards(access_.towards);
    published.push_back(address.text());
  }
  return published;
}

Task<Joining::Joined> Joining::run(std::shared_ptr<Joining> self) {
  MemberRecord& record = self->record_;
  record.name = self->core_->id().name;
  record.incarnation = self->core_->id().incarnation;
  if (self->rendezvous_.rank != Rendezvous::no_rank) record.rank = self->rendezvous_.rank;
  record.metadata = self->rendezvous_.metadata;
  if (self->access_.store == nullptr) co_await find_host(self);
  record.addresses = self->published_addresses();
  if (self->is_host() && self->rendezvous_.program_store != nullptr) co_await publish_host(self);
  self->meets(no_answer_of_store(self->rendezvous_));

  const auto store = self->access_.store;
  if (const auto ttl = self->rendezvous_.lease; ttl > std::chrono::nanoseconds::zero()) {
    const std::function<Future<StoreLease>()> grant = [store, ttl] { return store->grant(ttl); };
    self->lease_ = co_await patiently<StoreLease>(self, grant);
    self->keeper_ = std::make_shared<LeaseKeeper>(store, self->access_.loop, self->lease_, self->lost_);
  }
  co_await agree_on_world(self);
  const bool own_rank = self->rendezvous_.fixed_world ? co_await take_rank(self) : false;
  std::exception_ptr refused;
  try {
    co_await take_name(self);
  } catch (const Error&) {
    refused = std::current_exception();
  }
  if (refused != nullptr) {
    // The agent that the rank belongs to will join later.
    const std::function<Future<bool>()> give_back = [store, rank = record.rank] {
      return store->remove(std::string(membership_keys::ranks) + std::to_string(rank.value_or(0)));
    };
    if (own_rank) co_await patiently<bool>(self, give_back);
    std::rethrow_exception(refused);
  }
  if (self->is_host()) {
    const std::function<Future<void>()> name_host = [store, name = record.name] {
      return store->set(std::string(membership_keys::host), name);
    };
    co_await patiently<void>(self, name_host);
  } else if (self->rendezvous_.fixed_world || self->access_.with_host) {
    co_await meet_host(self);
  }
  const std::string claimed = to_text(record);
  record.state = MemberState::joined;
  const std::string joined = to_text(record);
  const std::function<Future<StoreExchange>()> publish =
      [store, claimed, joined, key = member_key(record.name), lease = self->lease_.id] {
        return store->compare_set(key, claimed, joined, lease);
      };
  const StoreExchange published = co_await patiently<StoreExchange>(self, publish);
  if (!published.stored && published.actual != joined)
    throw Error(ErrorKind::lease_lost,
                "this agent was declared dead while it joined: its record is gone from the job's store");
  co_return Joined{record, self->lease_.id, self->keeper_, store};
}

Task<void> Joining::publish_host(std::shared_ptr<Joining> self) {
  MemberRecord host = self->record_;
  host.metadata.clear();
  const std::string key = self->rendezvous_.program_prefix + program_key;
  const std::function<void()> publish = [store = self->rendezvous_.program_store, key,
                                         value = program_value(host)] { store->set(key, value); };
  self->meets("the program's store has not stored '" + key + "' yet");
  co_await self->on_separate_thread(publish);
}

// The key may still have the addresses of an earlier incarnation of rank 0. While that agent does not answer,
// the key is read again.
Task<void> Joining::find_host(std::shared_ptr<Joining> self) {
  const std::string key = self->rendezvous_.program_prefix + program_key;
  const std::function<std::optional<std::string>()> read = [store = self->rendezvous_.program_store, key] {
    return store->get(key, look_up_interval);
  };
  self->meets("the program's store has not answered a get of '" + key + "'");
  const auto until = self->access_.loop->now() + reach_timeout;
  for (;;) {
    Error problem(ErrorKind::unavailable, "rank 0 has not joined: the program's store has no '" + key + "'");
    const std::optional<std::string> value = co_await self->on_separate_thread(read);
    if (value) {
      const MemberRecord host = program_host(*value);
      const Peer peer =
          Peer(self->core_, self->core_->routes().to_name(host.name, host.addresses)).only(host.id());
      Future<Result<void>> pinged = peer.with(CallOptions{.timeout = ping_timeout}).call<Ping>().as_result();
      const Result<void> answer = co_await std::move(pinged);
      if (answer.ok()) {
        self->access_.store = std::make_shared<RemoteStore>(peer);
        for (const std::string& text : host.addresses)
          if (const Address address = Address::parse(text); address.scheme == "tcp")
            self->access_.towards = address.host;
        co_return;
      }
      const Error error = error_of(answer.error());
      problem = Error(error.kind(), "rank 0 ('" + host.name + "') does not answer: " + error.what());
      if (!is_outage(error) && error.kind() != ErrorKind::peer_lost) throw problem;
    }
    self->meets(problem.what());
    if (self->stopped() || self->access_.loop->now() >= until) throw problem;
    co_await self->pause();
  }
}

template <class T>
Future<T> Joining::on_separate_thread(std::function<T()> ask) {
  auto promise = std::make_shared<Promise<T>>();
  auto future = promise->future();
  const auto complete = [promise, over = std::make_shared<std::atomic<bool>>(false)](Result<T> result) {
    if (!over->exchange(true)) promise->complete(std::move(result));
  };
  bool stopped = false;
  {
    MutexLock lock(mutex_);
    end_ask_ = [complete] { complete(Error(ErrorKind::cancelled, "the agent no longer joins its job")); };
    stopped = stopped_;
  }
  if (stopped) {
    end_ask();
  } else {
    std::thread([ask = std::move(ask), complete] { complete(answer_of(ask)); }).detach();
  }
  return future;
}

void Joining::end_ask() {
  std::function<void()> end;
  {
    MutexLock lock(mutex_);
    end = std::exchange(end_ask_, nullptr);
  }
  if (end) end();
}

void Joining::meets(std::string obstacle) {
  MutexLock lock(mutex_);
  obstacle_ = std::move(obstacle);
}

std::string Joining::obstacle() const {
  MutexLock lock(mutex_);
  return obstacle_;
}

// ask is a named variable at each caller: g++ 12 destroys a closure within a co_await expression twice. The
// requested operation may have been done although its reply was lost; the caller must detect that.
template <class T>
Task<T> Joining::patiently(std::shared_ptr<Joining> self, std::function<Future<T>()> ask) {
  const auto until = self->access_.loop->now() + reach_timeout;
  for (;;) {
    Future<Result<T>> asked = ask().as_result();
    Result<T> answer = co_await std::move(asked);
    if (answer.ok()) co_return std::move(answer).get();
    const Error error = error_of(answer.error());
    if (!is_outage(error) || self->stopped() || self->access_.loop->now() >= until)
      std::rethrow_exception(answer.error());
    self->meets("the job's store (" + title_of_store(self->rendezvous_) +
                ") cannot be reached: " + error.what());
    co_await self->pause();
  }
}

// The first member stores the kind of the world and its identity; the others must have the same.
Task<void> Joining::agree_on_world(std::shared_ptr<Joining> self) {
  const std::string own =
      self->rendezvous_.fixed_world ? "fixed " + std::to_string(self->rendezvous_.world_size) : "elastic";
  const std::function<Future<StoreExchange>()> agree = [self, own] {
    return self->access_.store->compare_set(std::string(membership_keys::world), std::nullopt, own);
  };
  const StoreExchange agreed = co_await patiently<StoreExchange>(self, agree);
  const std::string world = agreed.actual.value_or(own);
  if (world != own) throw self->of_another_world(world, own);
  const auto job = self->rendezvous_.metadata.find(std::string(membership_keys::job));
  // A later job may use the address of a store of rank 0 while this job runs. Another store outlives jobs
  // that were killed, and each job has a prefix of its own there.
  if (!self->access_.with_host || !self->rendezvous_.fixed_world || job == self->rendezvous_.metadata.end())
    co_return;
  const std::function<Future<StoreExchange>()> identify = [self, id = job->second] {
    return self->access_.store->compare_set(std::string(membership_keys::job), std::nullopt, id);
  };
  const StoreExchange identified = co_await patiently<StoreExchange>(self, identify);
  if (identified.actual.value_or(job->second) == job->second) co_return;
  throw Error(ErrorKind::failed_precondition,
              "the store " + title_of_store(self->rendezvous_) + " is that of job '" + *identified.actual +
                  "', and '" + self->record_.name + "' is a member of job '" + job->second + "'");
}

// Returns whether the rank was free before.
Task<bool> Joining::take_rank(std::shared_ptr<Joining> self) {
  const std::string rank = std::to_string(self->rendezvous_.rank);
  const std::string& name = self->record_.name;
  const std::function<Future<StoreExchange>()> take = [self, rank, name] {
    return self->access_.store->compare_set(std::string(membership_keys::ranks) + rank, std::nullopt, name);
  };
  const StoreExchange taken = co_await patiently<StoreExchange>(self, take);
  // If the rank belongs to this agent's own name, either an earlier try succeeded, or another agent has both
  // the rank and the name. take_name() detects the second case.
  if (taken.actual != name)
    throw Error(ErrorKind::already_exists,
                "rank " + rank + " of this job is taken by '" + taken.actual.value_or("") + "'");
  co_return taken.stored;
}

Task<void> Joining::take_name(std::shared_ptr<Joining> self) {
  MemberRecord& record = self->record_;
  std::optional<std::string> expected;
  for (;;) {
    const std::function<Future<StoreExchange>()> take = [self, expected] {
      return self->access_.store->compare_set(member_key(self->record_.name), expected,
                                              to_text(self->record_), self->lease_.id);
    };
    const StoreExchange taken = co_await patiently<StoreExchange>(self, take);
    if (taken.stored) co_return;
    expected = taken.actual;
    if (!expected) continue;  // the record has just expired
    const MemberRecord other = from_text(record.name, *expected);
    // An earlier try succeeded, or an earlier join() of this agent, which had another lease.
    if (other.incarnation == record.incarnation) continue;
    if (self->rendezvous_.fixed_world) throw self->name_taken(other);
    if (!other.gone()) {
      co_await await_end(self, other);
      expected = std::nullopt;
      continue;
    }
    record.before = EarlierLife{other.incarnation, other.state == MemberState::left};
  }
}

Error Joining::of_another_world(const std::string& world, const std::string& own) const {
  const auto text = [](const std::string& kind) {
    return kind == "elastic" ? "an elastic world" : "a fixed world (" + kind.substr(kind.find(' ') + 1) + ")";
  };
  return Error(ErrorKind::failed_precondition,
               "this job is " + text(world) + ", and '" + record_.name + "' tried to join " + text(own) +
                   (access_.with_host
                        ? ""
                        : " (if the store " + rendezvous_.store + " is from an earlier job, remove it)"));
}

Error Joining::name_taken(const MemberRecord& other) const {
  const bool elsewhere = !access_.with_host && rendezvous_.fixed_world;
  return Error(
      ErrorKind::already_exists,
      "'" + other.name + "' has joined this job already, as " + to_string(other.id()) +
          (other.gone() ? ", and has left: a member of a fixed world cannot join again" : "") +
          (elsewhere ? " (if the store " + rendezvous_.store + " is from an earlier job, remove it)" : ""));
}

// The name belongs to an earlier incarnation of this agent, or to another agent. If an agent with this name
// answers a ping, it is another agent. Otherwise, wait until the lease of the name has expired, or until the
// host has found that its agent is gone.
Task<void> Joining::await_end(std::shared_ptr<Joining> self, MemberRecord other) {
  for (const std::string& address : other.addresses) {
    bool answers = true;
    try {
      const Peer peer(self->core_, self->core_->routes().to_address(address));
      co_await peer.with(CallOptions{.timeout = ping_timeout}).only(other.id()).call<Ping>();
    } catch (const Error&) {
      answers = false;
    }
    if (answers) throw self->name_taken(other);
  }
  const auto until = self->access_.loop->now() + leases_to_wait * self->rendezvous_.lease + look_up_interval;
  const std::string key = member_key(other.name);
  for (std::uint64_t version = 0;;) {
    bool changed = false, reached = true;
    try {
      const StoreChanges changes =
          co_await self->access_.store->watch(key, version, {.timeout = look_up_interval});
      version = changes.version;
      const auto now = changes.entries.find(key);
      changed = now == changes.entries.end() ? changes.whole
                                             : !now->second || from_text(other.name, *now->second).gone() ||
                                                   from_text(other.name, *now->second).id() != other.id();
    } catch (const Error& error) {
      if (!is_outage(error)) throw;
      reached = error.kind() == ErrorKind::deadline_exceeded;
    }
    if (changed) co_return;
    if (self->stopped() || self->access_.loop->now() >= until) throw self->name_taken(other);
    if (!reached) co_await self->pause();
  }
}

Task<void> Joining::meet_host(std::shared_ptr<Joining> self) {
  const auto until = self->access_.loop->now() + reach_timeout;
  std::optional<MemberRecord> host;
  self->meets("the host (rank 0) has not joined");
  while (!host) {
    bool reached = true;
    try {
      const CallOptions one_look{.timeout = look_up_interval};
      const std::string name =
          co_await self->access_.store->get(std::string(membership_keys::host), one_look);
      if (name.empty() && !self->rendezvous_.fixed_world) co_return;  // the store's keeper is not a member
      host = from_text(name, co_await self->access_.store->get(member_key(name), one_look));
    } catch (const Error& error) {
      reached = error.kind() == ErrorKind::deadline_exceeded;
      const bool again =
          reached || (error.kind() == ErrorKind::unavailable && self->access_.loop->now() < until);
      if (!again || self->stopped()) throw;
    }
    if (!reached) co_await self->pause();
  }
  self->met_host_(*host);
  // From here on, the two agents are connected. The end of the connection tells each side that the other has
  // ended.
  const Peer peer(self->core_, self->core_->routes().to_name(host->name, host->addresses));
  try {
    co_await peer.call<&MembershipService::check_alive>();
  } catch (const RemoteError& remote) {
    throw Error(remote.kind(), remote.detail());
  }
}

Future<void> Joining::pause() {
  auto promise = std::make_shared<Promise<void>>();
  auto future = promise->future();
  MutexLock lock(mutex_);
  if (stopped_) {
    lock.unlock();
    promise->complete(Result<void>{});
    return future;
  }
  pause_ = std::move(promise);
  lock.unlock();
  access_.loop->schedule_after(retry_interval, while_alive(this, &Joining::end_pause));
  return future;
}

void Joining::end_pause() {
  std::shared_ptr<Promise<void>> promise;
  {
    MutexLock lock(mutex_);
    promise = std::exchange(pause_, nullptr);
  }
  if (promise != nullptr) promise->complete(Result<void>{});
}

void Joining::stop() {
  {
    MutexLock lock(mutex_);
    stopped_ = true;
  }
  end_pause();
  end_ask();
}

bool Joining::stopped() const {
  MutexLock lock(mutex_);
  return stopped_;
}

}  // namespace weft::rpc::detail
