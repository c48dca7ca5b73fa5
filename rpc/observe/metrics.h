// Metrics: the counters of an agent and the durations of its calls, in Prometheus' format.
//
//   auto metrics = std::make_shared<observe::Metrics>();
//   rpc::Agent agent{{.name = "market"}, {metrics->layer()}};
//   observe::Endpoint endpoint{agent, metrics, {.address = "127.0.0.1:9464"}};   // /metrics, or:
//   exposer.RegisterCollectable(metrics);                       // prometheus-cpp's own server
//
// One Metrics object belongs to one agent. Each call locks one mutex, which calls of the same method share.
// docs/observability.md lists the names. Thread-safe.
#pragma once

#include <weft/rpc/agent/agent.h>
#include <weft/rpc/call/interceptor.h>
#include <weft/rpc/observe/loop_watch.h>

#include <prometheus/collectable.h>

namespace weft::observe {

// The options of the export.
struct MetricsOptions {
  std::vector<double> seconds;     // upper bounds of the histograms; empty: from 10 µs to 30 s
  std::size_t max_methods = 1000;  // in each direction; calls of further methods count as "other"
  std::chrono::nanoseconds timeout = std::chrono::seconds{1};  // the maximum wait for the answer of a loop
};

class WEFT_EXPORT Metrics final : public rpc::Interceptor,
                                  public prometheus::Collectable,
                                  public std::enable_shared_from_this<Metrics> {
 public:
  explicit Metrics(MetricsOptions options = {});
  ~Metrics() override;

  // The layer that installs the metrics into one agent. A second installation throws failed_precondition.
  rpc::Layer layer();

  // The current metrics. If the agent has ended, they contain only the durations of its calls. Do not call
  // Collect() or text() on the agent's loops.
  std::vector<prometheus::MetricFamily> Collect() const override;
  std::string text() const;  // Collect() in Prometheus' text format

  std::unique_ptr<rpc::CallWatch> calling(rpc::OutgoingCall& call, const std::string& peer,
                                          rpc::CallContext* serving) override;
  void answered(rpc::CallContext& call, const std::exception_ptr& error) noexcept override;

 private:
  class Side;
  class Watch;

  void collect_agent(std::vector<prometheus::MetricFamily>& families) const;

  const MetricsOptions options_;
  const std::unique_ptr<Side> made_, served_;
  std::atomic<bool> installed_{false};
  // Set by the layer, before the first collection.
  std::weak_ptr<rpc::AgentCore> core_;
  std::string agent_;
  std::unique_ptr<LoopWatch> loops_;
};

}  // namespace weft::observe
