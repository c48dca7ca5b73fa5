#include <weft/rpc/agent/agent_core.h>

#include <weft/rpc/agent/link.h>
#include <weft/rpc/core/asio_loop.h>
#include <weft/rpc/transport/in_process.h>
#include <weft/rpc/transport/shm/companion.h>
#include <weft/rpc/transport/shm/shm_transport.h>
#include <weft/rpc/transport/tcp_transport.h>
#include <weft/rpc/transport/unix_transport.h>

#include <algorithm>
#include <cstdio>
#include <random>

namespace weft::rpc {
namespace {

constexpr const char* self_scheme = "self";
constexpr std::size_t most_forgotten = 1024;

std::uint64_t draw_incarnation() {
  std::random_device device;
  const std::uint64_t high = device();
  return (high << 32 | device()) | 1;  // never 0
}

void print(const LogRecord& record) {
  if (record.level < LogLevel::warning) return;
  std::fprintf(stderr, "weft: %.*s: %.*s\n", static_cast<int>(record.agent.size()), record.agent.data(),
               static_cast<int>(record.message.size()), record.message.data());
}

AgentOptions complete(AgentOptions options) {
  if (options.name.empty()) throw Error(ErrorKind::invalid_argument, "an agent needs a name");
  if (Address::looks_like(options.name) || options.name.size() > most_name_bytes)
    throw Error(ErrorKind::invalid_argument, "an agent's name is no address, and has " +
                                                 std::to_string(most_name_bytes) + " bytes at most");
  if (!options.log) options.log = print;
  if (options.handler_threads == 0)
    options.handler_threads = std::max(2U, std::thread::hardware_concurrency());
  if (options.loops == 0) options.loops = 1;
  return options;
}

// Threads, sockets, and the system's randomness.
Runtime own_runtime(const AgentOptions& options, asio::io_context* context) {
  Runtime runtime;
  runtime.incarnation = draw_incarnation();
  runtime.handlers = std::make_shared<HandlerPool>(options.handler_threads);
  if (context != nullptr) {
    runtime.loops.push_back(std::make_shared<AsioLoop>(*context));
  } else {
    for (std::size_t i = 0; i < options.loops; ++i)
      runtime.loops.push_back(std::make_shared<AsioLoop>(options.spin));
  }
  runtime.transports = {make_tcp_transport(), make_unix_transport(), make_shm_transport()};
  return runtime;
}

}  // namespace

AgentCore::AgentCore(AgentOptions options, asio::io_context* context)
    : AgentCore(options, own_runtime(complete(options), context)) {}

AgentCore::AgentCore(AgentOptions options, Runtime runtime)
    : options_(complete(std::move(options))),
      id_{options_.name, runtime.incarnation},
      default_retry_(options_.retry ? std::make_shared<const RetryPolicy>(*options_.retry) : nullptr),
      loops_(std::move(runtime.loops)),
      handlers_(std::move(runtime.handlers)),
      own_handlers_(std::dynamic_pointer_cast<HandlerPool>(handlers_)),
      memory_(std::make_shared<MemoryPool>(options_.receive_pool)),
      interceptors_(options_.interceptors) {
  for (const auto& transport : runtime.transports) transports_[std::string(transport->scheme())] = transport;
  transports_[self_scheme] = std::make_shared<InProcess>();
  if (options_.in_process != nullptr) transports_["inproc"] = options_.in_process;
}

bool AgentCore::ByNumber::operator()(const std::shared_ptr<Link>& a, const std::shared_ptr<Link>& b) const {
  return a->number() < b->number();
}

AgentCore::~AgentCore() = default;

ConnectionOptions AgentCore::connection_options(std::string expected_agent) const {
  ConnectionOptions options(options_.limits, memory_);
  options.credentials = options_.credentials;
  options.expected_agent = std::move(expected_agent);
  return options;
}

AgentCounts AgentCore::counts() const {
  AgentCounts counts;
  counts.connections_made = counters_.connections_made;
  counts.connections_refused = counters_.connections_refused;
  counts.calls_made = next_call_ - 1;
  counts.calls_served = counters_.calls_served;
  counts.calls_denied = counters_.calls_denied;
  counts.calls_shed = counters_.calls_shed;
  counts.calls_retried = counters_.calls_retried;
  counts.peers_silent = counters_.peers_silent;
  counts.serving_bytes = held_bytes_;
  counts.waiting_bytes = outgoing_bytes_;
  counts.serving = static_cast<std::uint64_t>(std::max<std::int64_t>(active_, 0));
  counts.waiting = static_cast<std::uint64_t>(std::max<std::int64_t>(outgoing_, 0));
  counts.bytes_sent = counters_.bytes_sent;
  counts.bytes_received = counters_.bytes_received;
  counts.memory = memory_->counts();
  std::lock_guard lock(mutex_);
  for (const auto& [peer, links] : links_of_) counts.connections += static_cast<std::uint64_t>(links);
  return counts;
}

std::shared_ptr<Loop> AgentCore::pick_loop() { return loops_[next_loop_++ % loops_.size()]; }

void AgentCore::log(LogLevel level, const std::string& message) const {
  options_.log({level, id_.name, message});
}

void AgentCore::serve(MethodEntry entry) {
  entry.counters = std::make_shared<MethodCounters>();
  auto shared = std::make_shared<MethodEntry>(std::move(entry));
  std::unique_lock lock(methods_mutex_);
  auto& place = methods_[shared->id];
  if (place != nullptr) {
    // A type may be both served and creatable: the entry with an object replaces the one without.
    if (place->name != shared->name)
      throw Error(ErrorKind::already_exists,
                  "'" + shared->name + "' and '" + place->name + "' have the same id");
    if (!shared->needs_object || (place->object != nullptr && shared->object != nullptr))
      throw Error(ErrorKind::already_exists, "'" + shared->name + "' is served already");
    if (shared->object == nullptr) return;
  }
  if (const auto gate = gates_.find(shared->name); gate != gates_.end()) shared->gate = gate->second;
  place = std::move(shared);
}

void AgentCore::limit_method(const std::string& name, MethodLimit limit) {
  auto gate = std::make_shared<MethodGate>(limit);
  std::unique_lock lock(methods_mutex_);
  gates_[name] = gate;
  for (auto& [id, entry] : methods_) {
    if (entry->name != name) continue;
    auto limited = std::make_shared<MethodEntry>(*entry);
    limited->gate = gate;
    replaced_.push_back(std::exchange(entry, std::move(limited)));
  }
}

std::shared_ptr<const MethodEntry> AgentCore::find_method(std::uint64_t id) const {
  std::shared_lock lock(methods_mutex_);
  const auto found = methods_.find(id);
  return found == methods_.end() ? nullptr : found->second;
}

std::vector<std::shared_ptr<const MethodEntry>> AgentCore::methods() const {
  std::vector<std::shared_ptr<const MethodEntry>> all;
  std::shared_lock lock(methods_mutex_);
  for (const auto& [id, entry] : methods_) all.push_back(entry);
  return all;
}

void AgentCore::add_hook(std::shared_ptr<CallHook> hook) { hooks_.push_back(std::move(hook)); }

void AgentCore::listen() {
  const auto open = [this](const Address& address, const std::string& scheme) {
    Transport* way = transport(scheme);
    if (way == nullptr)
      throw Error(ErrorKind::invalid_argument, "this agent has no transport for " + address.text());
    return way->listen(
        address,
        [weak = weak_from_this()] {
          const auto core = weak.lock();
          return core == nullptr ? nullptr : core->pick_loop();
        },
        connection_options(), options_.insecure || options_.credentials != nullptr,
        [weak = weak_from_this()](std::shared_ptr<Connection> connection) {
          const auto core = weak.lock();
          if (core == nullptr || core->ended())
            return connection->close(Error(ErrorKind::shut_down, "shut down"));
          core->adopt(std::move(connection), nullptr);
        });
  };
  auto self = open(Address{self_scheme, {}, {}, id_.name}, self_scheme);
  std::lock_guard lock(mutex_);
  routes_[id_.name] = std::make_shared<Route>(shared_from_this(), pick_loop(), id_.name,
                                              std::vector{Address{self_scheme, {}, {}, id_.name}});
  routes_[id_.name]->identify(id_);
  listeners_.push_back(std::move(self));
  for (const std::string& text : options_.listen) {
    const Address address = Address::parse(text);
    listeners_.push_back(open(address, address.scheme));
  }
  if (!options_.same_host || options_.credentials != nullptr || transport("shm") == nullptr) return;
  for (const auto& listener : listeners_) {
    const auto companion = companion_of(listener->address());
    if (!companion) continue;
    try {
      companions_.push_back(open(*companion, companion->scheme));
    } catch (const Error& error) {
      log(LogLevel::debug,
          std::string("no shared memory beside ") + listener->address().text() + ": " + error.what());
    }
  }
}

std::vector<std::string> AgentCore::addresses() const {
  std::vector<std::string> all;
  std::lock_guard lock(mutex_);
  for (const auto& listener : listeners_)
    if (listener->address().scheme != self_scheme) all.push_back(listener->address().text());
  return all;
}

std::vector<std::string> AgentCore::addresses_of(const std::string& name) const {
  std::lock_guard lock(mutex_);
  const auto found = peer_addresses_.find(name);
  return found == peer_addresses_.end() ? std::vector<std::string>{} : found->second;
}

std::shared_ptr<Route> AgentCore::route(const std::string& name, std::vector<std::string> addresses) {
  std::vector<Address> known;
  for (const std::string& text : addresses) known.push_back(Address::parse(text));
  std::lock_guard lock(mutex_);
  auto& route = routes_[name];
  if (route == nullptr) {
    route = std::make_shared<Route>(shared_from_this(), pick_loop(), name, std::move(known));
  } else if (!known.empty() && name != id_.name) {
    route->loop()->post([route = route, known = std::move(known)] { route->learn(known); });
  }
  return route;
}

std::shared_ptr<Route> AgentCore::route_to(const std::string& address) {
  const Address parsed = Address::parse(address);
  std::lock_guard lock(mutex_);
  auto& route = routes_[parsed.text()];
  if (route == nullptr)
    route = std::make_shared<Route>(shared_from_this(), pick_loop(), parsed.text(), std::vector{parsed});
  return route;
}

std::vector<std::shared_ptr<Route>> AgentCore::all_routes() const {
  std::vector<std::shared_ptr<Route>> all;
  std::lock_guard lock(mutex_);
  for (const auto& [name, route] : routes_)  // one may have two names
    if (std::find(all.begin(), all.end(), route) == all.end()) all.push_back(route);
  return all;
}

std::vector<std::shared_ptr<Link>> AgentCore::all_links() const {
  std::lock_guard lock(mutex_);
  return {links_.begin(), links_.end()};
}

Transport* AgentCore::transport(const std::string& scheme) const {
  const auto found = transports_.find(scheme);
  return found == transports_.end() ? nullptr : found->second.get();
}

void AgentCore::set_directory(FindAddresses find) {
  std::lock_guard lock(mutex_);
  directory_ = std::move(find);
}

void AgentCore::find_addresses(const std::string& name, UniqueFunction<void(std::vector<Address>)> done) {
  FindAddresses directory;
  {
    std::lock_guard lock(mutex_);
    directory = directory_;
  }
  if (!directory) return done({});
  directory(name, std::move(done));
}

void AgentCore::prepare(std::shared_ptr<IncomingCall> call) {
  const auto unknown = call->message().unknown_required([this](std::string_view key) {
    return std::any_of(hooks_.begin(), hooks_.end(), [&](const auto& hook) { return hook->knows(key); });
  });
  if (unknown)
    return call->fail(std::make_exception_ptr(Error(
        ErrorKind::unsupported, "the call needs a layer that this agent was made without: " + *unknown)));
  struct Chain {
    static void step(const std::shared_ptr<AgentCore>& core, std::size_t left,
                     const std::shared_ptr<IncomingCall>& call) {
      if (left == 0) return call->run();
      try {
        core->hooks_[left - 1]->incoming(call, [core, left, call] { step(core, left - 1, call); });
      } catch (...) {
        call->fail(std::current_exception());
      }
    }
  };
  Chain::step(shared_from_this(), hooks_.size(), call);
}

void AgentCore::replied(IncomingMessage& message, const AgentId& from) {
  for (const auto& hook : hooks_) hook->replied(message, from);
}

void AgentCore::hand_on(CallContext& parent, OutgoingCall& child) {
  if (const auto deadline = parent.deadline(); deadline && (!child.deadline || *deadline < *child.deadline))
    child.deadline = deadline;
  for (const auto& hook : hooks_) hook->nested(parent, child);
}

void AgentCore::make_contexts(IncomingCall& call) {
  for (const auto& make : contexts_)
    if (auto context = make(call)) call.add_context(std::move(context));
}

bool AgentCore::outgoing_began(std::uint64_t attached) {
  const bool few =
      static_cast<std::uint64_t>(std::max<std::int64_t>(outgoing_++, 0)) < options_.limits.outgoing_calls;
  if (attached == 0) return few;
  return outgoing_bytes_.fetch_add(attached) < options_.limits.outgoing_bytes && few;
}

bool AgentCore::hold(std::uint64_t bytes) {
  if (held_bytes_.fetch_add(bytes) < options_.limits.in_flight_total) return true;
  held_bytes_ -= bytes;
  return false;
}

void AgentCore::outgoing_ended(std::uint64_t attached) {
  if (attached != 0) outgoing_bytes_ -= attached;
  --outgoing_;
  check_drained();
}

void AgentCore::call_ended() {
  --active_;
  check_drained();
}

void AgentCore::adopt(std::shared_ptr<Connection> connection, std::shared_ptr<Route> route) {
  const bool came_in = route == nullptr;
  std::shared_ptr<Link> link, oldest;
  {
    std::lock_guard lock(mutex_);
    link = std::make_shared<Link>(shared_from_this(), ++last_link_, std::move(connection), std::move(route));
    links_.insert(link);
    if (came_in) handshaking_.insert(link);
    // Who has been silent for longest makes room, so that a storm of such does not keep out who speaks.
    if (handshaking_.size() > options_.most_handshakes)
      oldest = std::move(handshaking_.extract(handshaking_.begin()).value());
  }
  if (oldest != nullptr) {
    AgentCounters::count(counters_.connections_refused);
    const auto& loop = oldest->loop();
    loop->post([oldest] {
      if (!oldest->ready())
        oldest->close(Error(ErrorKind::resource_exhausted, "too many connections that say nothing"));
    });
    if (oldest == link) return;
  }
  link->open();
  if (ended_) link->close(Error(ErrorKind::shut_down, "this agent has shut down"));
}

void AgentCore::handshake_over(const std::shared_ptr<Link>& link) {
  std::lock_guard lock(mutex_);
  handshaking_.erase(link);
}

void AgentCore::link_ready(const std::shared_ptr<Link>& link, std::shared_ptr<Route> dialled,
                           const HelloInfo& hello) {
  std::shared_ptr<Route> named;
  std::vector<Address> addresses;
  for (const std::string& text : hello.addresses) {
    try {
      addresses.push_back(Address::parse(text));
    } catch (const Error&) {
      log(LogLevel::warning, hello.name + " names an address that is none: " + text);
    }
  }
  {
    std::lock_guard lock(mutex_);
    ++links_of_[link->peer()];
    AgentCounters::count(counters_.connections_made);
    peer_addresses_[hello.name] = hello.addresses;
    auto& place = routes_[hello.name];
    if (place == nullptr)
      place = dialled != nullptr ? dialled
                                 : std::make_shared<Route>(shared_from_this(), link->loop(), hello.name,
                                                           std::vector<Address>{});
    named = place;
  }
  // A route that dialled runs on the link's loop.
  if (dialled != nullptr) dialled->link_up(link, true);
  if (named == dialled || hello.name == id_.name) return;
  const auto tell = [named, link, addresses = std::move(addresses)] {
    named->learn(addresses);
    named->link_up(link, false);
  };
  if (named->loop()->running_here()) return tell();
  named->loop()->post(tell);
}

void AgentCore::link_ended(const std::shared_ptr<Link>& link, const std::shared_ptr<Route>& dialled,
                           const Error& reason) {
  std::vector<std::shared_ptr<Route>> routes;
  bool gone = false;
  {
    std::lock_guard lock(mutex_);
    links_.erase(link);
    if (link->ready()) {
      if (dialled != nullptr) routes.push_back(dialled);
      if (const auto found = routes_.find(link->peer().name);
          found != routes_.end() && found->second != dialled)
        routes.push_back(found->second);
      if (--links_of_[link->peer()] == 0) {
        links_of_.erase(link->peer());
        gone = link->peer() != id_;
        // Who came by itself is forgotten where no life of that name is left and nobody here holds a way to
        // it (the table and `routes` do): names are cheap to make up.
        const std::string& name = link->peer().name;
        const auto other = links_of_.lower_bound(AgentId{name, 0});
        if (const auto found = routes_.find(name); dialled == nullptr && gone &&
                                                   (other == links_of_.end() || other->first.name != name) &&
                                                   found != routes_.end() && found->second.use_count() == 2) {
          routes_.erase(found);
          peer_addresses_.erase(name);
        }
      }
    }
  }
  for (const auto& route : routes) {
    if (route->loop()->running_here()) {
      route->link_down(link);
    } else {
      route->loop()->post([route, link] { route->link_down(link); });
    }
  }
  if (dialled != nullptr && !link->ready()) dialled->dial_failed(reason);
  if (gone) report_gone(link->peer(), reason);
}

void AgentCore::forget(const AgentId& life, const std::string& reason) {
  const Error error(ErrorKind::lease_lost, to_string(life) + " was taken for dead: " + reason);
  std::vector<std::shared_ptr<Link>> links;
  {
    std::lock_guard lock(mutex_);
    forgotten_.emplace_back(life, error);
    if (forgotten_.size() > most_forgotten) forgotten_.pop_front();
    links.assign(links_.begin(), links_.end());
  }
  forget_way(life);
  // Who is shaking hands meanwhile asks forgotten() afterwards.
  for (const auto& link : links)
    link->loop()->post([link, life, error] {
      if (link->ready() && link->peer() == life) link->expel(error);
    });
}

void AgentCore::forget_way(const AgentId& life) {
  std::shared_ptr<Route> route;
  {
    std::lock_guard lock(mutex_);
    if (const auto found = routes_.find(life.name); found != routes_.end()) route = found->second;
  }
  if (route != nullptr) route->loop()->post([route, life] { route->forget(life); });
}

std::optional<Error> AgentCore::forgotten(const AgentId& life) const {
  std::lock_guard lock(mutex_);
  for (const auto& [gone, error] : forgotten_)
    if (gone == life) return error;
  return std::nullopt;
}

void AgentCore::peer_leaving(const AgentId& peer) { log(LogLevel::debug, peer.name + " is leaving"); }

void AgentCore::report_gone(const AgentId& peer, const Error& reason) {
  for (const auto& hook : hooks_) hook->peer_gone(peer, reason);
}

Future<void> AgentCore::leaving() {
  auto promise = std::make_shared<Promise<void>>(pick_loop());
  auto future = promise->future();
  auto left = std::make_shared<std::atomic<std::size_t>>(hooks_.size() + 1);
  const auto one = [promise, left](Result<void>&&) {
    if (--*left == 0) promise->complete(Result<void>{});
  };
  for (auto hook = hooks_.rbegin(); hook != hooks_.rend(); ++hook) (*hook)->leaving().then(one);
  one(Result<void>{});
  return future;
}

Future<void> AgentCore::drain(std::chrono::nanoseconds patience) {
  auto draining = std::make_shared<Draining>(pick_loop());
  auto future = draining->promise.future();
  std::vector<std::shared_ptr<Link>> links;
  {
    std::lock_guard lock(mutex_);
    if (drained_ != nullptr) {
      draining->promise.fail(Error(ErrorKind::failed_precondition, "the agent is draining already"));
      return future;
    }
    drained_ = draining;
    links.assign(links_.begin(), links_.end());
  }
  draining_ = true;
  for (const auto& link : links) link->loop()->post([link] { link->say_goodbye(); });
  for (const auto& hook : hooks_) hook->draining();
  draining->loop->post([self = shared_from_this(), draining, patience] {
    draining->timer =
        draining->loop->schedule(later(draining->loop->now(), patience), [weak = std::weak_ptr(self)] {
          if (const auto core = weak.lock())
            core->end_drain(std::make_exception_ptr(
                Error(ErrorKind::deadline_exceeded,
                      std::to_string(core->active_) + " calls were still being served, and " +
                          std::to_string(core->outgoing_) + " waited for, when the time to drain was over")));
        });
    self->check_drained();
  });
  return future;
}

void AgentCore::check_drained() {
  if (draining_ && active_ == 0 && outgoing_ == 0) end_drain(Result<void>{});
}

void AgentCore::end_drain(Result<void> result) {
  std::shared_ptr<Draining> draining;
  {
    std::lock_guard lock(mutex_);
    draining = std::exchange(drained_, nullptr);
  }
  if (draining == nullptr) return;
  draining->loop->post(
      [draining] { draining->loop->cancel(draining->timer); });  // after it was made: posted later
  draining->promise.complete(std::move(result));
}

void AgentCore::fail_world(const Error& error) {
  std::vector<std::shared_ptr<Link>> links;
  std::vector<std::shared_ptr<Route>> routes;
  {
    std::lock_guard lock(mutex_);
    if (world_failure_) return;
    world_failure_ = error;
    world_failed_ = true;
    links.assign(links_.begin(), links_.end());
    for (const auto& [name, route] : routes_) routes.push_back(route);
  }
  log(LogLevel::error, error.what());
  for (const auto& link : links) link->loop()->post([link, error] { link->fail_pending(error); });
  for (const auto& route : routes) route->loop()->post([route, error] { route->fail_waiting(error); });
}

std::optional<Error> AgentCore::world_failure() const {
  if (!world_failed_) return std::nullopt;  // asked for every call
  std::lock_guard lock(mutex_);
  return world_failure_;
}

void AgentCore::shut_down() {
  if ((own_handlers_ != nullptr && own_handlers_->running_here()) ||
      std::any_of(loops_.begin(), loops_.end(),
                  [](const auto& loop) { return loop->owns_thread() && loop->running_here(); }))
    throw Error(
        ErrorKind::failed_precondition,
        "'" + id_.name +
            "' cannot be shut down, or destroyed, on one of its own threads: it waits for them to end");
  if (ended_.exchange(true)) return;
  draining_ = true;
  for (auto hook = hooks_.rbegin(); hook != hooks_.rend(); ++hook) (*hook)->shut_down();
  std::vector<std::unique_ptr<Listener>> listeners;
  std::vector<std::shared_ptr<Link>> links;
  std::vector<std::shared_ptr<Route>> routes;
  {
    std::lock_guard lock(mutex_);
    listeners = std::move(listeners_);
    listeners_.clear();
    for (auto& companion : std::exchange(companions_, {})) listeners.push_back(std::move(companion));
    links.assign(links_.begin(), links_.end());
    for (const auto& [name, route] : routes_) routes.push_back(route);
  }
  for (const auto& listener : listeners) listener->close();
  for (const auto& [scheme, transport] : transports_) transport->shut_down();
  const Error reason(ErrorKind::shut_down, "this agent has shut down");
  const auto end = [&](Loop& loop) {
    for (const auto& link : links)
      if (link->loop().get() == &loop) link->finish(reason);
    for (const auto& route : routes)
      if (route->loop().get() == &loop) route->shut_down(reason);
  };
  for (const auto& loop : loops_) {
    if (!loop->owns_thread()) {
      // The program's io_context, or a simulation's: the agent is destroyed on the thread that runs it, or
      // when nobody does any more.
      end(*loop);
      continue;
    }
    detail::Latch done;
    loop->post([&] {
      end(*loop);
      done.open();
    });
    done.wait();
  }
  listeners.clear();
  // Handlers that waited for calls have been woken with an error; what is queued runs to its end.
  if (own_handlers_ != nullptr) own_handlers_->join();
  for (const auto& loop : loops_) loop->stop();
  end_drain(
      std::make_exception_ptr(Error(ErrorKind::shut_down, "the agent was shut down before it had drained")));
  // Layers and methods hold the core; nothing runs here any more. What they let go of ends outside the locks.
  decltype(methods_) methods;
  decltype(replaced_) replaced;
  {
    std::unique_lock lock(methods_mutex_);
    methods.swap(methods_);
    replaced.swap(replaced_);
  }
  // A served object may keep the promise of an answer, and by it a call of its own method, for ever.
  for (const auto& [id, entry] : methods) entry->object = nullptr;
  for (const auto& entry : replaced) entry->object = nullptr;
  std::lock_guard lock(mutex_);
  routes_.clear();
  links_.clear();
  directory_ = nullptr;
  hooks_.clear();
  contexts_.clear();
  layers_ = {};
}

}  // namespace weft::rpc
