#include <weft/rpc/observe/metrics.h>

#include <weft/rpc/agent/stats.h>
#include <weft/rpc/core/mutex.h>

#include <prometheus/histogram.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <map>
#include <shared_mutex>

namespace weft::observe {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

constexpr std::string_view other_methods = "other", unknown_method = "unknown";

std::vector<double> usual_bounds() {
  return {1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01,
          0.02, 0.05, 0.1,  0.2,  0.5,  1,    2,    5,    10,   30};
}

double seconds(std::chrono::nanoseconds time) { return std::chrono::duration<double>(time).count(); }

// Names and values of one agent, as families with one metric each.
class Families {
 public:
  Families(std::vector<MetricFamily>& out, const std::string& agent) : out_(out), agent_(agent) {}

  void counter(const char* name, const char* help, std::uint64_t value) {
    add(name, help, MetricType::Counter).counter.value = static_cast<double>(value);
  }
  void gauge(const char* name, const char* help, std::uint64_t value) {
    add(name, help, MetricType::Gauge).gauge.value = static_cast<double>(value);
  }
  ClientMetric& add(const char* name, const char* help, MetricType type, Labels labels = {}) {
    if (out_.empty() || out_.back().name != name) out_.push_back({name, help, type, {}});
    ClientMetric& metric = out_.back().metric.emplace_back();
    metric.label = std::move(labels);
    metric.label.insert(metric.label.begin(), {"agent", agent_});
    return metric;
  }

 private:
  std::vector<MetricFamily>& out_;
  const std::string& agent_;
};

}  // namespace

// The calls of one direction, by method.
class Metrics::Side {
 public:
  explicit Side(const MetricsOptions& options)
      : bounds_(options.seconds.empty() ? usual_bounds() : options.seconds),
        max_methods_(options.max_methods) {}

  void count(std::string_view method, std::chrono::nanoseconds took, const std::exception_ptr& error) {
    Method& counted = find(method.empty() ? unknown_method : method);
    counted.seconds.Observe(std::max(seconds(took), 0.0));
    if (error == nullptr) return;
    const rpc::ErrorKind kind = error_kind(error, rpc::ErrorKind::handler_failed);
    rpc::MutexLock lock(counted.mutex);
    ++counted.failures[kind];
  }

  void collect(Families families, const char* time_name, const char* time_help, const char* failure_name,
               const char* failure_help) const {
    std::shared_lock lock(mutex_);
    for (const auto& [name, method] : methods_)
      families.add(time_name, time_help, MetricType::Histogram, {{"method", name}}).histogram =
          method->seconds.Collect().histogram;
    for (const auto& [name, method] : methods_) {
      rpc::MutexLock failures(method->mutex);
      for (const auto& [kind, count] : method->failures)
        families
            .add(failure_name, failure_help, MetricType::Counter,
                 {{"method", name}, {"kind", std::string(rpc::to_string(kind))}})
            .counter.value = static_cast<double>(count);
    }
  }

 private:
  struct Method {
    explicit Method(const std::vector<double>& bounds) : seconds(bounds) {}
    prometheus::Histogram seconds;
    rpc::Mutex mutex;
    std::map<rpc::ErrorKind, std::uint64_t> failures WEFT_GUARDED_BY(mutex);
  };

  Method& find(std::string_view name) {
    {
      std::shared_lock lock(mutex_);
      if (const auto found = methods_.find(name); found != methods_.end()) return *found->second;
    }
    std::unique_lock lock(mutex_);
    if (methods_.size() >= max_methods_ && !methods_.contains(name)) name = other_methods;
    auto found = methods_.find(name);
    if (found == methods_.end()) found = methods_.emplace(name, std::make_unique<Method>(bounds_)).first;
    return *found->second;
  }

  const std::vector<double> bounds_;
  const std::size_t max_methods_;
  mutable std::shared_mutex mutex_;  // guards methods_
  std::map<std::string, std::unique_ptr<Method>, std::less<>> methods_;
};

Metrics::Metrics(MetricsOptions options)
    : options_(std::move(options)),
      made_(std::make_unique<Side>(options_)),
      served_(std::make_unique<Side>(options_)) {}

Metrics::~Metrics() = default;

rpc::Layer Metrics::layer() {
  return [self = shared_from_this()](rpc::Agent& agent) {
    if (self->installed_.exchange(true))
      throw rpc::Error(rpc::ErrorKind::failed_precondition,
                       "these Metrics already belong to '" + self->agent_ + "'");
    self->core_ = agent.core();
    self->agent_ = agent.name();
    self->loops_ = std::make_unique<LoopWatch>(agent.core());
    agent.core()->hooks().add_interceptor(self);
  };
}

class Metrics::Watch final : public rpc::CallWatch {
 public:
  Watch(std::shared_ptr<Metrics> metrics, std::string_view method)
      : metrics_(std::move(metrics)), method_(method), made_(rpc::Clock::now()) {}
  void ended(const std::exception_ptr& error) noexcept override {
    metrics_->made_->count(method_, rpc::Clock::now() - made_, error);
  }

 private:
  const std::shared_ptr<Metrics> metrics_;
  const std::string method_;
  const rpc::Clock::time_point made_;
};

std::unique_ptr<rpc::CallWatch> Metrics::calling(rpc::OutgoingCall& call, const std::string&,
                                                 rpc::CallContext*) {
  return std::make_unique<Watch>(shared_from_this(), call.method());
}

void Metrics::answered(rpc::CallContext& call, const std::exception_ptr& error) noexcept {
  // IncomingCall is the only class that derives from CallContext.
  const auto& incoming = static_cast<const rpc::IncomingCall&>(call);
  served_->count(call.method(), rpc::Clock::now() - incoming.accepted(), error);
}

std::vector<MetricFamily> Metrics::Collect() const {
  std::vector<MetricFamily> families;
  collect_agent(families);
  const Families out(families, agent_);
  served_->collect(out, "weft_served_seconds", "Calls served, from arrival to reply.",
                   "weft_served_failures_total", "Calls served whose reply was an error.");
  made_->collect(out, "weft_made_seconds", "Calls made, from start to completion.",
                 "weft_made_failures_total", "Calls made that failed.");
  return families;
}

void Metrics::collect_agent(std::vector<MetricFamily>& families) const {
  const auto core = core_.lock();
  if (core == nullptr) return;
  const rpc::AgentCounts counts = core->counts();
  Families out(families, agent_);
  out.gauge("weft_connections", "Open connections.", counts.connections);
  out.counter("weft_connections_made_total", "Handshakes completed, by either side.",
              counts.connections_made);
  out.counter("weft_connections_refused_total",
              "Connections refused: bad credentials, handshake timeout, or too many.",
              counts.connections_refused);
  out.counter("weft_calls_made_total", "Calls made.", counts.calls_made);
  out.counter("weft_calls_received_total", "Requests received, including refused ones.", counts.calls_served);
  out.counter("weft_calls_denied_total", "Requests refused by permissions.", counts.calls_denied);
  out.counter("weft_calls_shed_total", "Requests refused because a limit was reached.", counts.calls_shed);
  out.counter("weft_calls_retried_total", "Attempts of calls made, without the first attempt.",
              counts.calls_retried);
  out.counter("weft_lanes_made_total", "Connections that became lanes of others.", counts.lanes_made);
  out.counter("weft_peers_silent_total", "Connections closed because heartbeats were missing.",
              counts.peers_silent);
  out.counter("weft_exceptions_dropped_total", "Exceptions thrown by continuations and by tasks of loops.",
              counts.exceptions_dropped);
  out.gauge("weft_calls_serving", "Calls in progress here.", counts.serving);
  out.gauge("weft_calls_waiting", "Calls made that are in flight.", counts.waiting);
  out.counter("weft_sent_bytes_total", "Bytes of requests and replies sent.", counts.bytes_sent);
  out.counter("weft_received_bytes_total", "Bytes of requests and replies received.", counts.bytes_received);
  out.counter("weft_pool_hits_total", "Large attachments received into memory that was used before.",
              counts.memory.hits);
  out.counter("weft_pool_misses_total", "Large attachments received into fresh memory.",
              counts.memory.misses);
  out.gauge("weft_pool_kept_bytes", "Bytes kept for future attachments.", counts.memory.kept_bytes);
  for (const auto& [name, figure] : core->hooks().stats())
    out.add("weft_layer", "A figure that a layer reports.", MetricType::Gauge, {{"figure", name}})
        .gauge.value = static_cast<double>(figure);
  if (const auto* gauges = core->layers().find<rpc::Gauges>())
    for (const auto& [name, value] : gauges->values())
      out.add("weft_gauge", "A number that the program publishes.", MetricType::Gauge, {{"name", name}})
          .gauge.value = value;
  const auto loops = loops_->ask(options_.timeout);
  for (std::size_t i = 0; i < loops.size(); ++i)
    out.add("weft_loop_delay_seconds", "Time until the loop runs a new task.", MetricType::Gauge,
            {{"loop", std::to_string(i)}})
        .gauge.value = seconds(loops[i].delay);
  for (std::size_t i = 0; i < loops.size(); ++i)
    out.add("weft_loop_cpu_seconds_total",
            "Processor time of the loop's thread: its rate is the loop's load.", MetricType::Counter,
            {{"loop", std::to_string(i)}})
        .counter.value = seconds(loops[i].cpu);
}

std::string Metrics::text() const { return prometheus::TextSerializer().Serialize(Collect()); }

}  // namespace weft::observe
