// Endpoint: an agent's metrics and its probes over HTTP.
//
//   /metrics   what Metrics counts, for Prometheus
//   /livez     200 while every loop of the agent answers in time: else a restart helps
//   /readyz    200 while it takes calls: not while it drains, has ended, is not live, or the program says no
//
// A refusal is a 503 that says why. Lives beside the agent and does not keep it; may end before or after it.
// Thread-safe.
#pragma once

#include <weft/rpc/agent/agent.h>
#include <weft/rpc/observe/http_server.h>
#include <weft/rpc/observe/loop_watch.h>
#include <weft/rpc/observe/metrics.h>

#include <optional>

namespace weft::observe {

// Where the endpoint listens, and whom it answers.
struct EndpointOptions {
  std::string address = "127.0.0.1:0";  // host:port
  bool remote = false;                  // answer other hosts too; whoever reaches the port is answered
  std::chrono::nanoseconds timeout = std::chrono::seconds{1};  // with a loop, before it counts as stuck
  // Why the program is not ready, or nothing where it is. On the endpoint's thread; must not block for long.
  std::function<std::optional<std::string>()> not_ready;
};

class WEFT_EXPORT Endpoint {
 public:
  // metrics: of this agent; null: there is no /metrics. Throws as HttpServer does.
  Endpoint(rpc::Agent& agent, std::shared_ptr<Metrics> metrics, EndpointOptions options = {});

  const std::string& address() const { return server_.address(); }  // host:port, as bound

 private:
  HttpServer server_;
};

}  // namespace weft::observe
