#include <weft/rpc/agent/agent.h>

#include <weft/rpc/agent/calls_in_flight.h>
#include <weft/rpc/agent/stats.h>
#include <weft/rpc/endpoint/agent_core.h>
#include <weft/rpc/stream/stream_table.h>

#ifndef WEFT_VERSION
#error "the build defines WEFT_VERSION for this file: CMakeLists.txt"
#endif

namespace weft::rpc {
namespace {

constexpr std::string_view methods_name = "weft.methods";
constexpr auto leave_timeout = std::chrono::seconds{30};

std::vector<MethodInfo> list(const IncomingCall& call) {
  std::vector<MethodInfo> infos;
  for (const auto& entry : call.host()->methods().all())
    infos.push_back({entry->name, entry->signature, entry->parameters, entry->result, entry->idempotent,
                     entry->needs_object && entry->object == nullptr});
  return infos;
}

Health health_of(const IncomingCall& call) {
  const auto core = AgentCore::of(call);
  Health health;
  health.status = core->draining() ? health_draining : health_serving;
  health.name = core->id().name;
  health.incarnation = core->id().incarnation;
  health.version = WEFT_VERSION;
  health.uptime = core->uptime().count();
  health.calls_served = core->accounts()->served() - 1;
  health.calls_made = core->accounts()->made();
  return health;
}

void serve_own_methods(MethodTable& methods) {
  MethodEntry list_entry = detail::own_method<std::vector<MethodInfo>>(methods_name, &list);
  list_entry.non_blocking = false;
  methods.serve(std::move(list_entry));
  methods.serve(detail::own_method<void>(Ping::name, [](const IncomingCall&) {}));
  methods.serve(detail::own_method<Health>(health_method, &health_of));
  methods.serve(stats_entry());
  methods.serve(pending_entry());
}

}  // namespace

Agent::Agent(const AgentOptions& options, const Layers& layers)
    : Agent(std::make_shared<AgentCore>(options, nullptr), layers) {}

Agent::Agent(asio::io_context& context, const AgentOptions& options, const Layers& layers)
    : Agent(std::make_shared<AgentCore>(options, &context), layers) {}

Agent::Agent(Runtime runtime, AgentOptions options, const Layers& layers)
    : Agent(std::make_shared<AgentCore>(std::move(options), std::move(runtime)), layers) {}

Agent::Agent(std::shared_ptr<AgentCore> core, const Layers& layers) : core_(std::move(core)) {
  try {
    serve_own_methods(core_->methods());
    install_streams(core_);
    for (const Layer& layer : layers) layer(*this);
    core_->listen();
  } catch (...) {
    core_->shut_down();
    throw;
  }
}

Agent::~Agent() { shut_down(); }

const AgentId& Agent::id() const { return core_->id(); }

const std::string& Agent::name() const { return core_->id().name; }

std::vector<std::string> Agent::addresses() const { return core_->addresses(); }

MethodTable& Agent::methods() { return core_->methods(); }

void Agent::limit(const std::string& method, MethodLimit limit) { methods().limit(method, limit); }

AgentCounts Agent::counts() const { return core_->counts(); }

Peer Agent::peer(const std::string& name_or_address) {
  return Peer(core_, Address::looks_like(name_or_address) ? core_->routes().to_address(name_or_address)
                                                          : core_->routes().to_name(name_or_address));
}

Future<void> Agent::leave() {
  auto promise = std::make_shared<Promise<void>>(core_->pick_loop());
  auto future = promise->future();
  // The layers leave first, because they still need the peers.
  core_->hooks().leave(core_->pick_loop()).then([core = core_, promise](Result<void>&&) {
    core->hooks().end_memberships().then([core, promise](Result<void>&& left) {
      std::exception_ptr error = left.ok() ? nullptr : left.error();
      // If the job has failed, the agent does not drain: no peer waits for the calls that are still served,
      // and all agents end soon.
      if (core->job_error()) {
        promise->complete(error != nullptr ? error : std::make_exception_ptr(*core->job_error()));
        return;
      }
      core->drain(leave_timeout).then([promise, error](Result<void>&& drained) {
        promise->complete(error != nullptr ? Result<void>(error) : std::move(drained));
      });
    });
  });
  return future;
}

Future<void> Agent::drain(std::chrono::nanoseconds timeout) { return core_->drain(timeout); }

void Agent::set_call_timeout(std::chrono::nanoseconds limit) { core_->set_default_timeout(limit); }

void Agent::shut_down() { core_->shut_down(); }

Future<std::vector<MethodInfo>> list_methods(const Peer& peer) {
  return peer.calls().ask<std::vector<MethodInfo>>(methods_name);
}

Future<Health> health(const Peer& peer) { return peer.calls().ask<Health>(health_method); }

}  // namespace weft::rpc
