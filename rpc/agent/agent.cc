#include <weft/rpc/agent/agent.h>

#include <weft/rpc/agent/health.h>
#include <weft/rpc/agent/membership.h>
#include <weft/rpc/agent/stats.h>
#include <weft/rpc/agent/streams.h>
#include <weft/rpc/agent/under_way.h>

#include <algorithm>

namespace weft::rpc {
namespace {

constexpr std::string_view methods_name = "weft.methods";
constexpr auto leave_timeout = std::chrono::seconds{30};

std::vector<MethodInfo> list(AgentCore& core) {
  std::vector<MethodInfo> infos;
  for (const auto& entry : core.methods().all())
    infos.push_back({entry->name, entry->signature, entry->parameters, entry->result, entry->idempotent,
                     entry->needs_object && entry->object == nullptr});
  std::sort(infos.begin(), infos.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return infos;
}

MethodEntry ping_entry() {
  MethodEntry entry;
  entry.name = ping_method;
  entry.id = name_hash(ping_method);
  entry.signature = "()->void";
  entry.signature_hash = name_hash(entry.signature);
  entry.result = "void";
  entry.idempotent = entry.non_blocking = true;
  entry.run = [](std::shared_ptr<IncomingCall> call) {
    call->reply([](ValueWriter writer) { writer.set_nil(); });
  };
  return entry;
}

MethodEntry methods_entry() {
  using Traits = detail::HandlerTraits<std::vector<MethodInfo> (*)()>;
  MethodEntry entry;
  entry.name = methods_name;
  entry.id = name_hash(methods_name);
  entry.signature = Traits::text();
  entry.signature_hash = name_hash(entry.signature);
  entry.result = type_text<std::vector<MethodInfo>>();
  entry.idempotent = true;
  entry.run = [](std::shared_ptr<IncomingCall> call) {
    call->reply(
        [&](ValueWriter writer) { Codec<std::vector<MethodInfo>>::encode(writer, list(*call->core())); });
  };
  return entry;
}

}  // namespace

Agent::Agent(AgentOptions options, Layers layers)
    : Agent(std::make_shared<AgentCore>(std::move(options), nullptr), std::move(layers)) {}

Agent::Agent(asio::io_context& context, AgentOptions options, Layers layers)
    : Agent(std::make_shared<AgentCore>(std::move(options), &context), std::move(layers)) {}

Agent::Agent(Runtime runtime, AgentOptions options, Layers layers)
    : Agent(std::make_shared<AgentCore>(std::move(options), std::move(runtime)), std::move(layers)) {}

Agent::Agent(std::shared_ptr<AgentCore> core, Layers layers) : core_(std::move(core)) {
  try {
    core_->methods().serve(methods_entry());
    core_->methods().serve(ping_entry());
    install_streams(core_);
    core_->methods().serve(health_entry(*core_));
    core_->methods().serve(stats_entry());
    core_->methods().serve(pending_entry());
    for (const Layer& layer : layers) layer(*this);
    if (core_->options().rendezvous) membership_ = make_membership(core_, *core_->options().rendezvous);
    core_->listen();
  } catch (...) {
    core_->shut_down();
    throw;
  }
}

Agent::~Agent() { shut_down(); }

Peer Agent::peer(const std::string& name_or_address) {
  return Peer(core_, Address::looks_like(name_or_address) ? core_->route_to(name_or_address)
                                                          : core_->route(name_or_address));
}

Peer Agent::peer(std::size_t rank) { return Peer(core_, core_->route(membership().name_of(rank))); }

Membership& Agent::membership() const {
  if (membership_ == nullptr)
    throw Error(ErrorKind::failed_precondition,
                "'" + name() + "' is part of no job: its options have no rendezvous");
  return *membership_;
}

std::vector<Member> Agent::members() const { return membership().members(); }

std::unique_ptr<MemberWatch> Agent::watch_members() { return membership().watch(); }

Future<void> Agent::leave() {
  auto core = core_;
  auto membership = membership_;
  auto promise = std::make_shared<Promise<void>>(core->pick_loop());
  auto future = promise->future();
  // The layers first: they still need the peers; then the job; then nothing new is accepted.
  core->hooks().leave(core->pick_loop()).then([core, membership, promise](Result<void>&& layers) {
    const auto drain = [core, promise](Result<void>&& left) {
      std::exception_ptr error = left.ok() ? nullptr : left.error();
      // Where the job has failed nobody waits for what is still being served, and everybody is to end soon.
      if (core->world_failure()) {
        promise->complete(error != nullptr ? error : std::make_exception_ptr(*core->world_failure()));
        return;
      }
      core->drain(leave_timeout).then([promise, error](Result<void>&& drained) {
        promise->complete(error != nullptr ? Result<void>(error) : std::move(drained));
      });
    };
    if (membership == nullptr) return drain(std::move(layers));
    membership->leave().then([drain, first = std::move(layers)](Result<void>&& left) mutable {
      drain(first.ok() ? std::move(left) : std::move(first));
    });
  });
  return future;
}

Future<void> Agent::drain(std::chrono::nanoseconds timeout) { return core_->drain(timeout); }

void Agent::set_call_timeout(std::chrono::nanoseconds limit) { core_->set_default_timeout(limit); }

void Agent::shut_down() {
  if (membership_ != nullptr) membership_->shut_down();
  core_->shut_down();
}

Future<std::vector<MethodInfo>> list_methods(const Peer& peer) {
  Promise<std::vector<MethodInfo>> promise(peer.route()->loop());
  auto future = promise.future();
  OutgoingCall call = peer.make_call(methods_name, 0);
  call.begin();
  call.end();
  peer.start(std::move(call), [promise = std::move(promise)](Result<PendingCall::Reply> reply) mutable {
    promise.complete(Peer::decode<std::vector<MethodInfo>>(std::move(reply), methods_name));
  });
  return future;
}

}  // namespace weft::rpc
