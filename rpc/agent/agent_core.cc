// AgentCore: its making, its methods, and what is common to its calls.
#include <weft/rpc/agent/agent_core.h>

#include <weft/rpc/agent/link.h>
#include <weft/rpc/agent/sessions.h>
#include <weft/rpc/core/asio_loop.h>
#include <weft/rpc/transport/admission.h>
#include <weft/rpc/transport/in_process.h>
#include <weft/rpc/transport/shm/shm_transport.h>
#include <weft/rpc/transport/tcp_transport.h>
#include <weft/rpc/transport/unix_transport.h>

#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <random>

namespace weft::rpc {
namespace {

constexpr std::size_t max_lines_of_a_topic = 10;
constexpr auto log_window = std::chrono::seconds{10};

std::uint64_t draw() {
  std::random_device device;
  const std::uint64_t high = device();
  return high << 32 | device();
}

void print(const LogRecord& record) {
  if (record.level < LogLevel::warning) return;
  std::fprintf(stderr, "weft: %.*s: %.*s\n", static_cast<int>(record.agent.size()), record.agent.data(),
               static_cast<int>(record.message.size()), record.message.data());
}

// Who comes in and says nothing leaves descriptors for those who speak.
std::size_t half_of_descriptors() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
    return std::numeric_limits<std::size_t>::max();
  return std::max<std::size_t>(static_cast<std::size_t>(limit.rlim_cur) / 2, 1);
}

AgentOptions complete(AgentOptions options) {
  if (options.name.empty()) throw Error(ErrorKind::invalid_argument, "an agent needs a name");
  if (Address::looks_like(options.name) || options.name.size() > max_name_bytes)
    throw Error(ErrorKind::invalid_argument, "an agent's name is no address, and has " +
                                                 std::to_string(max_name_bytes) + " bytes at most");
  if (!options.log) options.log = print;
  if (options.handler_threads == 0)
    options.handler_threads = std::max(2U, std::thread::hardware_concurrency());
  if (options.loops == 0) options.loops = 1;
  options.max_handshakes = std::min(options.max_handshakes, half_of_descriptors());
  return options;
}

// Threads, sockets, and the system's randomness.
Runtime own_runtime(const AgentOptions& options, asio::io_context* context) {
  Runtime runtime;
  runtime.incarnation = draw() | 1;  // never 0
  runtime.id_seed = draw();
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

AgentCore::AgentCore(AgentOptions options, asio::io_context* context)
    : AgentCore(options, own_runtime(complete(options), context)) {}

AgentCore::AgentCore(AgentOptions options, Runtime runtime)
    : options_(complete(std::move(options))),
      id_{options_.name, runtime.incarnation},
      id_seed_(runtime.id_seed),
      default_retry_(options_.retry ? std::make_shared<const RetryPolicy>(*options_.retry) : nullptr),
      default_timeout_(options_.call_timeout.value_or(no_timeout).count()),
      loops_(std::move(runtime.loops)),
      made_(loops_.front()->now()),
      handlers_(std::move(runtime.handlers)),
      own_handlers_(std::dynamic_pointer_cast<HandlerPool>(handlers_)),
      memory_(std::make_shared<MemoryPool>(options_.receive_pool)),
      admission_(std::make_shared<Admission>(options_.limits.in_flight_total)),
      sessions_(
          std::make_shared<Sessions>(options_, id_seed_, runtime.process,
                                     [this](const std::shared_ptr<Session>& session, const Error& reason) {
                                       if (const auto self = weak_from_this().lock())
                                         self->end_session(session, reason);
                                     })),
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
  options.connect_timeout = options_.connect_timeout;
  options.admission = admission_;
  return options;
}

AgentCounts AgentCore::counts() const {
  AgentCounts counts;
  counts.connections_made = counters_.connections_made;
  counts.connections_refused = counters_.connections_refused;
  counts.lanes_made = counters_.lanes_made;
  counts.calls_made = next_call_ - 1;
  counts.calls_served = counters_.calls_served;
  counts.calls_denied = counters_.calls_denied;
  counts.calls_shed = counters_.calls_shed;
  counts.calls_retried = counters_.calls_retried;
  counts.peers_silent = counters_.peers_silent;
  counts.exceptions_dropped = counters_.exceptions_dropped;
  counts.serving_bytes = admission_->bytes();
  counts.waiting_bytes = outgoing_bytes_ + outgoing_values_;
  counts.serving = static_cast<std::uint64_t>(std::max<std::int64_t>(active_.all(), 0));
  counts.waiting = static_cast<std::uint64_t>(std::max<std::int64_t>(outgoing_.all(), 0));
  counts.bytes_sent = counters_.bytes_sent;
  counts.bytes_received = counters_.bytes_received;
  counts.memory = memory_->counts();
  std::lock_guard lock(mutex_);
  counts.handshakes = handshaking_.size();
  for (const auto& [peer, links] : links_of_) counts.connections += static_cast<std::uint64_t>(links);
  return counts;
}

LayerFigures AgentCore::layer_figures() const {
  LayerFigures figures;
  for (const auto& hook : hooks_) hook->figures(figures);
  return figures;
}

std::shared_ptr<Loop> AgentCore::pick_loop() { return loops_[next_loop_++ % loops_.size()]; }

void AgentCore::log(LogLevel level, const std::string& message,
                    std::initializer_list<LogField> fields) const {
  std::vector<LogField> known;
  for (const LogField& field : fields)
    if (!field.value.empty()) known.push_back(field);
  options_.log({level, id_.name, escaped(message), known});
}

// Beyond the ten they are of level debug, which the default sink leaves out.
void AgentCore::log_some(const char* topic, const std::shared_ptr<Loop>& loop, const std::string& message,
                         std::initializer_list<LogField> fields) {
  const auto now = loop->now();
  LogLevel level = LogLevel::warning;
  {
    std::lock_guard lock(log_mutex_);
    LogWindow& window = log_windows_[topic];
    if (now >= window.ends && window.left_out == 0) window = {later(now, log_window)};
    if (window.logged < max_lines_of_a_topic) {
      ++window.logged;
    } else {
      level = LogLevel::debug;
      if (++window.left_out == 1) {
        auto summarise = [weak = weak_from_this(), topic] {
          const auto core = weak.lock();
          if (core == nullptr) return;
          std::unique_lock again(core->log_mutex_);
          const std::size_t left_out = std::exchange(core->log_windows_[topic], {}).left_out;
          again.unlock();
          core->log(LogLevel::warning, std::string(topic) + ": " + std::to_string(left_out) +
                                           " more within 10 s (Agent::counts() counts all)");
        };
        if (loop->running_here()) {
          loop->schedule(window.ends, summarise);
        } else {
          // By pointer: a loop that is never turned again must not keep itself.
          loop->post([loop = loop.get(), summarise, ends = window.ends] { loop->schedule(ends, summarise); });
        }
      }
    }
  }
  log(level, message, fields);
}

void AgentCore::beat_was_late(Clock::time_point now, std::chrono::nanoseconds by) {
  // Each of its connections was: said by the first of them.
  const auto time = now.time_since_epoch().count();
  const auto again = std::chrono::duration_cast<Clock::duration>(options_.heartbeat.interval).count();
  auto last = last_late_beat_.load();
  if (last > time - again || !last_late_beat_.compare_exchange_strong(last, time)) return;
  log(LogLevel::warning,
      "a loop came " + std::to_string(std::chrono::duration<double>(by).count()) +
          " s late to its heartbeats: a non_blocking handler kept it, or the program whose io_context it is, "
          "or the process stood still. Peers take this agent for lost when they hear nothing for their "
          "timeout");
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

std::string AgentCore::text_of(const std::exception_ptr& failure) const {
  for (const auto& explain : explanations_)
    if (auto text = explain(failure)) return std::move(*text);
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& known) {
    return known.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

bool AgentCore::outgoing_began(OutgoingSize size, bool background) {
  const std::int64_t others =
      background ? outgoing_.work + outgoing_.background++ : outgoing_.background + outgoing_.work++;
  bool within =
      static_cast<std::uint64_t>(std::max<std::int64_t>(others, 0)) < options_.limits.outgoing_calls;
  if (size.attached != 0) within &= outgoing_bytes_.fetch_add(size.attached) < options_.limits.outgoing_bytes;
  if (size.values != 0) within &= outgoing_values_.fetch_add(size.values) < options_.limits.outgoing_values;
  return within;
}

bool AgentCore::hold(std::uint64_t bytes, bool upkeep, bool admitted) {
  if (!upkeep && held_calls_.fetch_add(1) >= options_.limits.calls_total) {
    --held_calls_;
    return false;
  }
  if (upkeep || admitted) {
    admission_->charge_anyway(bytes);
  } else if (!admission_->charge(bytes)) {
    --held_calls_;
    return false;
  }
  return true;
}

void AgentCore::let_go(std::uint64_t bytes, bool upkeep) {
  admission_->release(bytes);
  if (!upkeep) --held_calls_;
}

void AgentCore::outgoing_ended(OutgoingSize size, bool background) {
  if (size.attached != 0) outgoing_bytes_ -= size.attached;
  if (size.values != 0) outgoing_values_ -= size.values;
  --(background ? outgoing_.background : outgoing_.work);
  check_drained();
}

void AgentCore::call_ended(bool background) {
  --(background ? active_.background : active_.work);
  check_drained();
}

std::shared_ptr<void> AgentCore::retry_waits(OutgoingSize size) {
  ++retrying_;
  outgoing_bytes_ += size.attached;
  outgoing_values_ += size.values;
  return {nullptr, [core = shared_from_this(), size](void*) {
            core->outgoing_bytes_ -= size.attached;
            core->outgoing_values_ -= size.values;
            --core->retrying_;
          }};
}

AgentCore::Work AgentCore::work_with(const std::set<std::string>& names) const {
  Work work;
  work.served = active_.work;
  work.made = outgoing_.work + retrying_;
  std::lock_guard lock(mutex_);
  work.ever = requests_of_ended_links_;
  for (const auto& link : links_) {
    const std::uint64_t sent = link->requests_sent(), received = link->requests_received();
    work.ever += sent + received;
    if (!link->ready() || !names.contains(link->peer().name)) continue;
    work.sent += sent;
    work.received += received;
  }
  return work;
}

}  // namespace weft::rpc
