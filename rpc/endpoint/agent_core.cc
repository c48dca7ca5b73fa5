#include <weft/rpc/endpoint/agent_core.h>

#include <weft/rpc/core/asio_loop.h>
#include <weft/rpc/core/handler_pool.h>
#include <weft/rpc/core/split_mix.h>
#include <weft/rpc/core/while_alive.h>
#include <weft/rpc/endpoint/link.h>
#include <weft/rpc/endpoint/sessions.h>
#include <weft/rpc/transport/in_process.h>
#include <weft/rpc/transport/shm/companion.h>
#include <weft/rpc/transport/shm/shm_transport.h>

#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <limits>

namespace weft::rpc {
namespace {

constexpr const char* self_scheme = "self";  // the scheme of the address at which an agent calls itself

void print(const LogRecord& record) {
  if (record.level < LogLevel::warning) return;
  std::fprintf(stderr, "weft: %.*s: %.*s\n", static_cast<int>(record.agent.size()), record.agent.data(),
               static_cast<int>(record.message.size()), record.message.data());
}

// The limit of pending handshakes. It leaves half of the descriptors to connected peers.
std::size_t half_of_descriptors() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
    return std::numeric_limits<std::size_t>::max();
  return std::max<std::size_t>(static_cast<std::size_t>(limit.rlim_cur) / 2, 1);
}

AgentOptions complete(AgentOptions options) {
  if (options.name.empty())
    throw Error(ErrorKind::invalid_argument, "AgentOptions::name is empty, expected a name");
  if (Address::looks_like(options.name) || options.name.size() > max_name_bytes)
    throw Error(ErrorKind::invalid_argument,
                "AgentOptions::name '" + options.name.substr(0, max_name_bytes) + "' has " +
                    std::to_string(options.name.size()) +
                    " bytes: expected a name that is not an address, of at most " +
                    std::to_string(max_name_bytes) + " bytes");
  if (!options.log) options.log = print;
  if (options.handler_threads == 0)
    options.handler_threads = std::max(2U, std::thread::hardware_concurrency());
  if (options.loops == 0) options.loops = 1;
  options.max_handshakes = std::min(options.max_handshakes, half_of_descriptors());
  return options;
}

// The runtime of an agent that is given none: threads, sockets, and the system's randomness.
Runtime own_runtime(const AgentOptions& options, asio::io_context* context) {
  Runtime runtime;
  runtime.incarnation = draw_random() | 1;  // never 0
  runtime.id_seed = draw_random();
  runtime.process = own_process();
  runtime.handlers = std::make_shared<HandlerPool>(options.handler_threads);
  if (context != nullptr) {
    runtime.loops.push_back(std::make_shared<AsioLoop>(*context));
  } else {
    for (std::size_t i = 0; i < options.loops; ++i)
      runtime.loops.push_back(std::make_shared<AsioLoop>(options.spin));
  }
  runtime.transports = {make_tcp_transport(), make_unix_transport(),
                        make_shm_transport({.max_connections = options.max_shared})};
  return runtime;
}

}  // namespace

AgentCore::AgentCore(const AgentOptions& options, asio::io_context* context)
    : AgentCore(options, own_runtime(complete(options), context)) {}

AgentCore::AgentCore(AgentOptions options, Runtime runtime)
    : CallHost({options.name, runtime.incarnation}, runtime.handlers, options.limits, options.interceptors,
               options.retry, options.call_timeout.value_or(no_timeout)),
      options_(complete(std::move(options))),
      loops_(std::move(runtime.loops)),
      made_(loops_.front()->now()),
      log_(std::make_shared<AgentLog>(options_.name, options_.log)),
      own_handlers_(std::dynamic_pointer_cast<HandlerPool>(runtime.handlers)),
      memory_(std::make_shared<MemoryPool>(options_.receive_pool)),
      links_(options_.max_handshakes),
      sessions_(std::make_shared<Sessions>(*this, runtime.id_seed, runtime.process)),
      routes_(*this) {
  for (const auto& transport : runtime.transports) transports_[std::string(transport->scheme())] = transport;
  transports_[self_scheme] = std::make_shared<InProcess>();
  if (options_.in_process != nullptr) transports_["inproc"] = options_.in_process;
}

std::shared_ptr<AgentCore> AgentCore::of(const CallContext& call) {
  return std::static_pointer_cast<AgentCore>(call.host());
}

Transport* AgentCore::transport(const std::string& scheme) const {
  const auto found = transports_.find(scheme);
  return found == transports_.end() ? nullptr : found->second.get();
}

ConnectionOptions AgentCore::connection_options(std::string expected_agent) const {
  ConnectionOptions options(options_.limits, memory_);
  options.credentials = options_.credentials;
  options.expected_agent = std::move(expected_agent);
  options.connect_timeout = options_.connect_timeout;
  options.admission = accounts()->admission();
  return options;
}

AgentCounts AgentCore::counts() const {
  AgentCounts counts = accounts()->counts();
  counts.memory = memory_->counts();
  links_.add_to(counts);
  return counts;
}

std::unique_ptr<Listener> AgentCore::listen_at(const Address& address) {
  Transport* way = transport(address.scheme);
  if (way == nullptr)
    throw Error(ErrorKind::invalid_argument, "this agent has no transport for " + address.text());
  if (options_.credentials != nullptr && !way->checks_credentials())
    throw Error(ErrorKind::permission_denied,
                "listening on " + address.text() +
                    " would admit peers without credentials: this agent has credentials, but transport '" +
                    address.scheme + "' does not check them");
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
          return connection->close(Error(ErrorKind::shut_down, "this agent has shut down"));
        core->adopt(std::move(connection), nullptr);
      });
}

void AgentCore::listen() {
  const ExceptionSink::Handler dropped = while_alive(this, [](AgentCore& core, const std::string& text) {
    core.counters().exceptions_dropped.add();
    core.log().write(LogLevel::error,
                     text + "; handle the error in the continuation, or return a future that fails");
  });
  for (const auto& loop : loops_) loop->exceptions()->set_handler(dropped);
  if (const auto exceptions = handlers().exceptions()) exceptions->set_handler(dropped);
  const Address own{self_scheme, {}, {}, id().name};
  auto self = listen_at(own);
  routes_.find_or_make(id().name, {own})->identify(id());
  MutexLock lock(mutex_);
  listeners_.push_back(std::move(self));
  for (const std::string& text : options_.listen) listeners_.push_back(listen_at(Address::parse(text)));
  if (!options_.same_host || options_.credentials != nullptr || transport("shm") == nullptr) return;
  for (const auto& listener : listeners_) {
    const auto companion = companion_of(listener->address());
    if (!companion) continue;
    try {
      companions_.push_back(listen_at(*companion));
    } catch (const Error& error) {
      log().write(
          LogLevel::debug,
          std::string("no shared memory for ") + listener->address().text() + ": " + error.what(),
          {{log_fields::address, listener->address().text()}, {log_fields::kind, to_string(error.kind())}});
    }
  }
}

std::vector<std::string> AgentCore::addresses() const {
  std::vector<std::string> all;
  MutexLock lock(mutex_);
  for (const auto& listener : listeners_)
    if (listener->address().scheme != self_scheme) all.push_back(listener->address().text());
  return all;
}

std::vector<std::string> AgentCore::stated_addresses(const std::optional<HostPair>& hosts) const {
  std::vector<std::string> stated;
  for (const std::string& text : addresses())
    if (const auto seen = as_seen_by_peer(Address::parse(text), hosts)) stated.push_back(seen->text());
  return stated;
}

// --- Connections and peers ---

void AgentCore::adopt(std::shared_ptr<Connection> connection, std::shared_ptr<Route> route,
                      std::shared_ptr<Link> whole, std::uint64_t lane_key) {
  const bool accepted = route == nullptr && whole == nullptr;
  const auto link = std::make_shared<Link>(shared_from_this(), links_.next_number(), std::move(connection),
                                           std::move(route), std::move(whole), lane_key);
  if (const auto oldest = links_.add(link, accepted)) {
    counters().connections_refused.add();
    oldest->loop()->post([oldest, limit = options_.max_handshakes] {
      if (!oldest->ready())
        oldest->close(Error(ErrorKind::resource_exhausted, "too many pending handshakes: the limit is " +
                                                               std::to_string(limit) +
                                                               " (AgentOptions::max_handshakes)"));
    });
    if (oldest == link) return;
  }
  link->open();
  if (ended()) link->close(Error(ErrorKind::shut_down, "this agent has shut down"));
}

void AgentCore::link_ready(const std::shared_ptr<Link>& link, const std::shared_ptr<Session>& session,
                           const std::shared_ptr<Route>& dialled, const HelloInfo& hello) {
  std::vector<Address> addresses;
  std::vector<std::string> texts;
  for (const std::string& text : hello.addresses) {
    try {
      Address address = Address::parse(text);
      if (!is_on_host_of_peer(address, link->hosts())) continue;
      addresses.push_back(std::move(address));
      texts.push_back(text);
    } catch (const Error&) {
      log().write_some("malformed addresses", link->loop(),
                       hello.name + " states a malformed address: " + text,
                       {{log_fields::peer, hello.name}, {log_fields::address, text}});
    }
  }
  counters().connections_made.add();
  const auto named = routes_.peer_connected(hello.name, texts, dialled, link->loop());
  session->add(link);
  // A name has one incarnation at a time, apart from earlier ones that drain.
  const bool replaces = !session->is_leaving();
  for (const AgentId& peer : sessions_->absent(hello.name))
    if (replaces && peer != link->peer())
      lose(peer, Error(ErrorKind::peer_lost, to_string(link->peer()) + " has replaced it"));
  // A route that dialled runs on the link's loop.
  if (dialled != nullptr) dialled->connected(session, true);
  if (hello.name == id().name || named == dialled) return;
  named->loop()->dispatch([named, session, replaces, addresses = std::move(addresses)] {
    if (replaces) named->learn(addresses);
    named->connected(session, false);
  });
}

bool AgentCore::session_absent(const Session& session, const std::shared_ptr<Loop>& loop,
                               const Error& reason) {
  const AgentId& peer = session.peer();
  if (ended() || links_.forgotten(peer) || !sessions_->begin_absence(session, reason, loop)) return false;
  log().write(LogLevel::info, peer.name + " is absent: " + reason.what(),
              {{log_fields::peer, peer.name}, {log_fields::kind, to_string(reason.kind())}});
  if (const auto named = routes_.find(peer.name)) named->rejoin();
  return true;
}

void AgentCore::session_lost(const std::shared_ptr<Session>& session, const Error& reason) {
  end_session(session, reason, sessions_->close(*session));
}

void AgentCore::lose(const AgentId& peer, const Error& reason) {
  if (const auto session = sessions_->close(peer)) end_session(session, reason, true);
}

void AgentCore::end_session(const std::shared_ptr<Session>& session, const Error& why, bool is_gone) {
  // A peer that is leaving may lose its connection before it has ended.
  const bool has_left = session->is_leaving() && why.kind() == ErrorKind::peer_lost;
  const Error reason = has_left ? Error(ErrorKind::shut_down, why.what()) : why;
  session->run([self = shared_from_this(), session, reason, is_gone] {
    const AgentId& peer = session->peer();
    if (is_gone)
      if (const auto route = self->routes_.find(peer.name)) route->end_of(peer);
    session->end(reason, self->job_error_of_ends());
    if (!is_gone || self->ended()) return;
    for (const auto& hook : self->hooks().all()) hook->peer_gone(peer, reason);
    self->routes_.drop_unused(peer.name);
  });
}

void AgentCore::forget(const AgentId& peer, const std::string& reason) {
  const Error error(ErrorKind::lease_lost, to_string(peer) + " was declared dead: " + reason);
  links_.forget(peer, error);
  if (const auto route = routes_.find(peer.name)) route->forget(peer);
  // A link whose handshake completes later calls LinkTable::forgotten() itself.
  for (const auto& link : links_.all())
    link->loop()->post([link, peer, error] {
      if (link->ready() && link->peer() == peer) link->expel(error);
    });
  if (sessions_->is_absent(peer)) lose(peer, error);
  for (const auto& hook : hooks().all()) hook->peer_forgotten(peer, error);
}

// --- The end ---

Future<void> AgentCore::drain(std::chrono::nanoseconds timeout) {
  return accounts()->drain(pick_loop(), timeout, [this] {
    for (const auto& link : links_.all()) link->loop()->post([link] { link->send_goodbye(); });
    for (const auto& hook : hooks().all()) hook->draining();
  });
}

void AgentCore::fail_job(const Error& reason) {
  set_job_error(reason);
  if (!set_job_ended()) return;
  const Error error = *job_error();
  log().write(LogLevel::error, error.what(), {{log_fields::kind, to_string(error.kind())}});
  for (const auto& route : routes_.all()) route->loop()->post([route, error] { route->fail_waiting(error); });
  for (const auto& session : sessions_->all()) session->fail_calls(error);
  for (const auto& hook : hooks().all()) hook->job_failed(error);
}

void AgentCore::shut_down() {
  if ((own_handlers_ != nullptr && own_handlers_->running_here()) ||
      std::any_of(loops_.begin(), loops_.end(),
                  [](const auto& loop) { return loop->owns_thread() && loop->running_here(); }))
    throw Error(
        ErrorKind::failed_precondition,
        "'" + id().name +
            "' cannot be shut down or destroyed on one of its threads: shutdown waits for these threads");
  if (!end()) return;
  // If the program runs the loop, on several threads perhaps, then no turn of the loop runs meanwhile.
  const auto& loop = loops_.front();
  loop->owns_thread() ? end_all() : loop->run_turn([this] { end_all(); });
}

void AgentCore::end_all() {
  accounts()->set_draining();
  for (auto hook = hooks().all().rbegin(); hook != hooks().all().rend(); ++hook) (*hook)->shut_down();
  std::vector<std::unique_ptr<Listener>> listeners;
  {
    MutexLock lock(mutex_);
    listeners = std::exchange(listeners_, {});
    for (auto& companion : std::exchange(companions_, {})) listeners.push_back(std::move(companion));
  }
  const LinkTable::Links links = links_.all();
  const RouteTable::Routes routes = routes_.all();
  for (const auto& listener : listeners) listener->close();
  for (const auto& [scheme, transport] : transports_) transport->shut_down();
  const Error reason(ErrorKind::shut_down, "this agent has shut down");
  // If the job has failed, the peers receive the error of the job: a peer that has not detected the failure
  // would otherwise report this shutdown as the cause.
  auto failure = job_error();
  if (failure && failure->kind() != ErrorKind::peer_lost) failure.reset();
  const auto sessions = sessions_->all_alive();
  const auto end_on = [&](Loop& loop) {
    for (const auto& link : links)
      if (link->loop().get() == &loop) failure ? link->expel(*failure) : link->end_incarnation(reason);
    for (const auto& route : routes)
      if (route->loop().get() == &loop) route->shut_down(reason);
    for (const auto& session : sessions) session->end_on(loop, reason);
  };
  const auto end_on_all = [&] {
    for (const auto& loop : loops_) {
      if (!loop->owns_thread()) {
        // The loop of the program or of a simulation, which may not run any more.
        end_on(*loop);
        continue;
      }
      detail::Latch done;
      loop->post([&] {
        end_on(*loop);
        done.open();
      });
      done.wait();
    }
  };
  end_on_all();
  listeners.clear();
  // Handlers that waited for calls have received an error; queued jobs run to completion.
  if (own_handlers_ != nullptr) own_handlers_->join();
  end_on_all();  // what handlers have left, and sessions that had moved to another loop meanwhile
  sessions_->clear();
  for (const auto& loop : loops_) loop->stop();
  accounts()->fail_drain(Error(ErrorKind::shut_down, "drain: the agent was shut down before it had drained"));
  // Layers and methods own the core, so this cycle must be broken. No thread of the agent runs any more. The
  // objects of layers and methods are destroyed without locks.
  methods().clear();
  hooks().clear();
  routes_.clear();
  links_.clear();
}

}  // namespace weft::rpc
