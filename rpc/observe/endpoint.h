// Endpoint: an agent's metrics and its probes over HTTP.
//
//   /metrics   the counters of Metrics, for Prometheus
//   /livez     200 if every loop of the agent answers in time; otherwise restart the process
//   /readyz    200 if the agent accepts calls: every loop answers, the agent neither drains nor has ended,
//              its job has not failed, and EndpointOptions::not_ready returns nullopt
//
// If the condition of /livez or /readyz does not hold, the reply is 503 with the reason. The Endpoint does
// not own the agent, and may be destroyed before or after the agent. Thread-safe.
#pragma once

#include <weft/rpc/agent/agent.h>
#include <weft/rpc/observe/http_server.h>
#include <weft/rpc/observe/metrics.h>

#include <optional>

namespace weft::observe {

// The address on which the endpoint listens, and the hosts that it answers.
struct EndpointOptions {
  std::string address = "127.0.0.1:0";  // host:port
  bool remote = false;                  // true: also answers other hosts, without authentication
  std::chrono::nanoseconds timeout = std::chrono::seconds{1};  // the time after which a loop counts as stuck
  // Returns the reason why the program is not ready; nullopt if it is ready. Runs on the endpoint's thread;
  // must not block for long.
  std::function<std::optional<std::string>()> not_ready;
};

class WEFT_EXPORT Endpoint {
 public:
  // metrics: the agent's; null: the endpoint has no /metrics. Throws as HttpServer does.
  Endpoint(rpc::Agent& agent, std::shared_ptr<Metrics> metrics, EndpointOptions options = {});

  const std::string& address() const { return server_.address(); }  // host:port, with the actual port

 private:
  HttpServer server_;
};

}  // namespace weft::observe
