// AgentCore: its making, its methods, and what is common to its calls.
#include <weft/rpc/agent/agent_core.h>

#include <weft/rpc/agent/link.h>
#include <weft/rpc/agent/sessions.h>
#include <weft/rpc/core/asio_loop.h>
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
    : CallHost({options.name, runtime.incarnation}, runtime.handlers, options.limits, options.interceptors,
               options.retry, options.call_timeout.value_or(no_timeout)),
      options_(complete(std::move(options))),
      id_seed_(runtime.id_seed),
      loops_(std::move(runtime.loops)),
      made_(loops_.front()->now()),
      own_handlers_(std::dynamic_pointer_cast<HandlerPool>(runtime.handlers)),
      memory_(std::make_shared<MemoryPool>(options_.receive_pool)),
      sessions_(
          std::make_shared<Sessions>(options_, id_seed_, runtime.process,
                                     [this](const std::shared_ptr<Session>& session, const Error& reason) {
                                       if (const auto self = weak_from_this().lock())
                                         self->end_session(session, reason);
                                     })) {
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
  options.admission = accounts()->admission();
  return options;
}

AgentCounts AgentCore::counts() const {
  AgentCounts counts;
  accounts()->add_to(counts);
  counts.memory = memory_->counts();
  std::lock_guard lock(mutex_);
  counts.handshakes = handshaking_.size();
  for (const auto& [peer, links] : links_of_) counts.connections += static_cast<std::uint64_t>(links);
  return counts;
}

std::shared_ptr<Loop> AgentCore::pick_loop() { return loops_[next_loop_++ % loops_.size()]; }

void AgentCore::log(LogLevel level, const std::string& message,
                    std::initializer_list<LogField> fields) const {
  std::vector<LogField> known;
  for (const LogField& field : fields)
    if (!field.value.empty()) known.push_back(field);
  options_.log({level, id().name, escaped(message), known});
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

AgentCore::Work AgentCore::work_with(const std::set<std::string>& names) const {
  Work work;
  work.served = accounts()->served_work();
  work.made = accounts()->made_work();
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
