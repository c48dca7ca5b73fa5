#include <weft/rpc/observe/endpoint.h>

namespace weft::observe {
namespace {

HttpReply refusal(const std::string& why) { return {503, {}, why + "\n"}; }

class Probes {
 public:
  Probes(const std::shared_ptr<rpc::AgentCore>& core, EndpointOptions options)
      : core_(core), loops_(core), options_(std::move(options)) {}

  HttpReply live() {
    const auto why = stuck();
    return why ? refusal(*why) : HttpReply{200, {}, "live\n"};
  }

  HttpReply ready() {
    const auto core = core_.lock();
    if (core != nullptr && core->draining() && !core->ended()) return refusal("draining");
    if (const auto why = stuck()) return refusal(*why);
    if (const auto failure = core->job_error())
      return refusal(std::string("the job has failed: ") + failure->what());
    if (options_.not_ready)
      if (const auto why = options_.not_ready()) return refusal(*why);
    return {200, {}, "ready\n"};
  }

 private:
  std::optional<std::string> stuck() {
    const auto loops = loops_.ask(options_.timeout);
    if (loops.empty()) return "shut down";
    for (std::size_t i = 0; i < loops.size(); ++i)
      if (!loops[i].answered)
        return "loop " + std::to_string(i) + " has not answered for " +
               std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(loops[i].delay).count()) +
               " ms";
    return std::nullopt;
  }

  const std::weak_ptr<rpc::AgentCore> core_;
  LoopWatch loops_;
  const EndpointOptions options_;
};

HttpServer::Pages pages(rpc::Agent& agent, std::shared_ptr<Metrics> metrics, const EndpointOptions& options) {
  const auto probes = std::make_shared<Probes>(agent.core(), options);
  HttpServer::Pages pages{{"/livez", [probes] { return probes->live(); }},
                          {"/readyz", [probes] { return probes->ready(); }}};
  if (metrics != nullptr)
    pages["/metrics"] = [metrics = std::move(metrics)] {
      return HttpReply{200, "text/plain; version=0.0.4; charset=utf-8", metrics->text()};
    };
  return pages;
}

}  // namespace

Endpoint::Endpoint(rpc::Agent& agent, std::shared_ptr<Metrics> metrics, EndpointOptions options)
    : server_(options.address, pages(agent, std::move(metrics), options), {.remote = options.remote}) {}

}  // namespace weft::observe
