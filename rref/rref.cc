#include <weft/rref/rref.h>

#include <weft/rpc/endpoint/agent_core.h>
#include <weft/rref/cycles.h>
#include <weft/rref/listing.h>
#include <weft/rref/protocol_service.h>
#include <weft/rref/rref_layer.h>
#include <weft/rref/section.h>

namespace weft::rref {

rpc::Layers layers() {
  return {[](rpc::Agent& agent) {
    auto layer = std::make_shared<RRefLayer>(agent.core());
    agent.core()->layers().put(layer);
    agent.core()->hooks().add(layer);
    serve_protocol(*agent.core(), layer);
    serve_listing(*agent.core(), layer);
    serve_holdings(*agent.core(), layer);
  }};
}

namespace detail {

rpc::AgentId known_incarnation(const rpc::Peer& peer) {
  if (auto known = peer.identity()) return std::move(*known);
  throw rpc::Error(
      rpc::ErrorKind::failed_precondition,
      "an RRef to an object on '" + peer.name() +
          "': the peer's incarnation is unknown: await peer.ready() first, or wait_for() the job",
      rpc::Execution::not_sent);
}

bool is_confirmed(const ReferencePtr& reference) { return reference->layer()->confirmed(*reference); }

rpc::Peer owner_of(const ReferencePtr& reference, const rpc::CallOptions& options) {
  return reference->layer()->peer(reference->owner(), options);
}

void target(const ReferencePtr& reference, rpc::OutgoingCall& call) {
  reference->layer()->target(reference, call);
}

Reply explain(Reply reply, const About& object) { return RRefLayer::explain(std::move(reply), object); }

rpc::Future<std::shared_ptr<StoredObject>> local_object(const ReferencePtr& reference) {
  if (!reference->is_owner())
    return rpc::Future<std::shared_ptr<StoredObject>>::made(std::make_exception_ptr(
        rpc::Error(rpc::ErrorKind::failed_precondition,
                   "the object lives on " + reference->owner().name + ": use to_here()")));
  rpc::Promise<std::shared_ptr<StoredObject>> promise(reference->layer()->core()->pick_loop());
  auto future = promise.future();
  reference->layer()->when_alive(reference,
                                 [promise = std::move(promise)](StoredObjects::Found object) mutable {
                                   promise.complete(std::move(object));
                                 });
  return future;
}

ReferencePtr adopt(rpc::Agent& agent, rpc::KeptValue value, std::string type, std::string site) {
  return RRefLayer::of(*agent.core())->adopt_local(std::move(value), std::move(type), std::move(site));
}

KeptCall make_kept_call(const rpc::Peer& peer, std::string_view method, std::size_t arguments,
                        const ReferencePtr& target, std::string type, std::string site,
                        std::optional<std::string> name) {
  const auto layer = target != nullptr ? target->layer() : RRefLayer::of(*peer.calls().core());
  const rpc::AgentId owner = target != nullptr ? target->owner() : known_incarnation(peer);
  rpc::OutgoingCall call = peer.only(owner).calls().make(method, arguments);
  peer.calls().add_default_timeout(call);
  if (target != nullptr) layer->target(target, call);
  auto result = layer->create(owner, std::move(type), std::move(site), call, std::move(name));
  return {std::move(call), std::move(result)};
}

void write(rpc::ValueWriter writer, const ReferencePtr& reference) {
  const std::uint64_t index = RRefLayer::encode(writer.message(), reference);
  rpc::RecordWriter record = writer.set_record(1);
  record.field(0, value_field).set_uint(index);
}

ReferencePtr read(rpc::ValueReader reader) {
  rpc::ValueReader index;
  if (!reader.find_field(value_field, 0, index)) reader.mismatch("an RRef");
  return RRefLayer::decode(reader.message(), index.get_uint());
}

std::string text_of(const std::string& type, const ReferencePtr& reference) {
  const std::string text = "rref<" + type + "> ";
  if (reference == nullptr) return text + "(none)";
  return text + to_string(reference->id()) + " on " + reference->owner().name +
         (reference->fork() ? ", fork " + to_string(*reference->fork()) : "");
}

}  // namespace detail
}  // namespace weft::rref
