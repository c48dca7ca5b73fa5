#include <weft/rref/protocol_service.h>

#include <weft/rpc/endpoint/sessions.h>
#include <weft/rref/rref.h>

#include <algorithm>

namespace weft::rref {
namespace {

constexpr auto retry_after = std::chrono::milliseconds{100};
constexpr std::size_t max_deletes = 512;  // of one message

// The error, if it means that no message can reach that incarnation of the peer. A peer that is shutting down
// still exists: the end of its connection will be detected.
std::optional<rpc::Error> unreachable_error(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const rpc::Error& known) {
    switch (known.kind()) {
      case rpc::ErrorKind::peer_lost:
      case rpc::ErrorKind::unavailable:
      case rpc::ErrorKind::not_found:
        return known;
      default:
        return std::nullopt;
    }
  } catch (...) {
    return std::nullopt;
  }
}

template <class Message>
struct MethodOf;
template <>
struct MethodOf<protocol::ForkAdd> {
  static constexpr auto target = &ProtocolService::fork_add;
};
template <>
struct MethodOf<protocol::ForkFence> {
  static constexpr auto target = &ProtocolService::fork_fence;
};
template <>
struct MethodOf<protocol::ForkProbe> {
  static constexpr auto target = &ProtocolService::fork_probe;
};
template <>
struct MethodOf<protocol::ChildSettled> {
  static constexpr auto target = &ProtocolService::child_settled;
};
template <>
struct MethodOf<protocol::CreationFailed> {
  static constexpr auto target = &ProtocolService::creation_failed;
};

// A method that answers a request to an object with data of the object itself.
rpc::MethodEntry object_method(std::string_view name,
                               std::function<void(rpc::IncomingCall&, const StoredObject&)> answer) {
  rpc::MethodEntry entry;
  entry.name = name;
  entry.id = rpc::name_hash(name);
  entry.signature = "()->any";
  entry.signature_hash = rpc::name_hash(entry.signature);
  entry.result = "any";
  entry.idempotent = true;
  entry.run = [answer = std::move(answer)](std::shared_ptr<rpc::IncomingCall> call) {
    const auto* target = call->slots().find<RRefLayer::Target>();
    if (target == nullptr)
      return call->fail(std::make_exception_ptr(
          rpc::Error(rpc::ErrorKind::invalid_argument, "a request without an object")));
    const rpc::ContextScope scope(call->context());  // a guard may have put the right version in place
    answer(*call, *target->object);
  };
  return entry;
}

}  // namespace

// Whether the message to `to` can never arrive.
bool RRefLayer::drop_unreachable(const rpc::AgentId& to, const std::exception_ptr& error) {
  const auto unreachable = unreachable_error(error);
  if (!unreachable || core_->sessions().knows(to))
    return false;  // possibly only one of several connections was lost
  peer_gone(to, *unreachable);
  return true;
}

template <class Message>
void RRefLayer::send(rpc::AgentId to, Message message) {
  if (core_->ended()) return;
  auto weak = weak_from_this();
  peer(to).call<MethodOf<Message>::target>(message).then([weak, to, message](auto&& answer) {
    const auto self = weak.lock();
    if (self == nullptr) return;
    if (!answer.ok()) {
      if (self->drop_unreachable(to, answer.error())) return;
      return self->later([weak, to, message] {
        if (const auto again = weak.lock()) again->send(to, message);
      });
    }
    self->act([&](protocol::Actions& out) {
      self->mutex_.assume_locked();
      if (self->ended_) return;
      if constexpr (std::is_same_v<Message, protocol::ForkProbe>) {
        self->owned_.probe_answered(message, answer.value(), out);
      } else if constexpr (std::is_same_v<Message, protocol::ForkAdd> ||
                           std::is_same_v<Message, protocol::ForkFence>) {
        self->used_.answered(to, message, answer.value(), out);
      }
    });
  });
}

// A container releases many references at once: the messages to one owner are sent together.
void RRefLayer::send(rpc::AgentId to, protocol::ForkDelete message) {
  {
    rpc::MutexLock lock(deletes_mutex_);
    auto& gathered = deletes_[to];
    gathered.push_back(message);
    if (gathered.size() != 1) return;
  }
  if (core_->ended()) return;
  core_->pick_loop()->post([weak = weak_from_this(), to] {
    if (const auto self = weak.lock()) self->send_deletes(to);
  });
}

void RRefLayer::send_deletes(const rpc::AgentId& to) {
  std::vector<protocol::ForkDelete> all;
  {
    rpc::MutexLock lock(deletes_mutex_);
    if (auto node = deletes_.extract(to)) all = std::move(node.mapped());
  }
  for (std::size_t begin = 0; begin < all.size() && !core_->ended(); begin += max_deletes) {
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(begin);
    std::vector<protocol::ForkDelete> some(
        first, first + static_cast<std::ptrdiff_t>(std::min(max_deletes, all.size() - begin)));
    peer(to).call<&ProtocolService::fork_deletes>(some).then(
        [weak = weak_from_this(), to, some](rpc::Result<std::vector<protocol::Standing>>&& answer) {
          const auto self = weak.lock();
          if (self == nullptr) return;
          if (!answer.ok() || answer.value().size() != some.size()) {
            if (!answer.ok() && self->drop_unreachable(to, answer.error())) return;
            return self->later([weak, to, some] {
              if (const auto again = weak.lock())
                for (const auto& message : some) again->send(to, message);
            });
          }
          self->act([&](protocol::Actions& out) {
            self->mutex_.assume_locked();
            if (self->ended_) return;
            for (std::size_t i = 0; i < some.size(); ++i)
              self->used_.answered(to, some[i], answer.value()[i], out);
          });
        });
  }
}

void RRefLayer::notify_taken_for_gone(const rpc::AgentId& to) {
  if (core_->ended()) return;
  peer(to).call<&ProtocolService::taken_for_gone>().then(
      [weak = weak_from_this(), to](rpc::Result<void>&& answer) {
        const auto self = weak.lock();
        // Without a connection the agent cannot be notified. connection_made() notifies it over the next
        // connection.
        if (self == nullptr || answer.ok() || !self->core_->sessions().is_connected(to)) return;
        self->later([weak, to] {
          if (const auto again = weak.lock()) again->notify_taken_for_gone(to);
        });
      });
}

void RRefLayer::later(rpc::Callback job) {
  if (core_->ended()) return;
  auto loop = core_->pick_loop();
  loop->post(
      [loop, job = std::move(job)]() mutable { loop->schedule(loop->now() + retry_after, std::move(job)); });
}

// A connection whose end will be detected. An agent that cannot be found may still connect by itself, but the
// wait is bounded.
void RRefLayer::watch(const rpc::AgentId& agent, rpc::Clock::time_point timeout) {
  if (core_->ended() || agent == self_) return;
  const rpc::Peer to = peer(agent);
  rpc::OutgoingCall ping = to.calls().make(rpc::Ping::name, 0);
  ping.begin();
  ping.end();
  to.calls().start(std::move(ping), [weak = weak_from_this(), agent, timeout](rpc::Result<Reply> answer) {
    const auto self = weak.lock();
    if (self == nullptr || answer.ok()) return;
    try {
      std::rethrow_exception(answer.error());
    } catch (const rpc::RemoteError&) {
      // The peer exists: it has replied, although with an error.
    } catch (const rpc::Error& error) {
      if (self->core_->sessions().knows(agent))
        return;  // the end of another connection, or its absence, will be detected
      if (error.kind() == rpc::ErrorKind::peer_lost || self->now() >= timeout)
        return self->peer_gone(agent, error);
      self->later([weak, agent, timeout] {
        if (const auto again = weak.lock()) again->watch(agent, timeout);
      });
    }
  });
}

template void RRefLayer::send(rpc::AgentId, protocol::ForkAdd);
template void RRefLayer::send(rpc::AgentId, protocol::ForkFence);
template void RRefLayer::send(rpc::AgentId, protocol::ForkProbe);
template void RRefLayer::send(rpc::AgentId, protocol::ChildSettled);
template void RRefLayer::send(rpc::AgentId, protocol::CreationFailed);

protocol::Standing ProtocolService::fork_add(rpc::CallContext& call, protocol::ForkAdd message) {
  return layer->act([&](protocol::Actions& out) {
    layer->mutex_.assume_locked();
    return layer->owned_.on_fork_add(call.peer().id, message, out);
  });
}
std::vector<protocol::Standing> ProtocolService::fork_deletes(rpc::CallContext& call,
                                                              std::vector<protocol::ForkDelete> messages) {
  return layer->act([&](protocol::Actions& out) {
    layer->mutex_.assume_locked();
    std::vector<protocol::Standing> standings;
    standings.reserve(messages.size());
    for (const protocol::ForkDelete& message : messages)
      standings.push_back(layer->owned_.on_fork_delete(call.peer().id, message, out));
    return standings;
  });
}
protocol::Standing ProtocolService::fork_fence(rpc::CallContext& call, protocol::ForkFence message) {
  return layer->act([&](protocol::Actions& out) {
    layer->mutex_.assume_locked();
    return layer->owned_.on_fork_fence(call.peer().id, message, out);
  });
}
protocol::ProbeReply ProtocolService::fork_probe(rpc::CallContext& call, protocol::ForkProbe message) {
  return layer->act([&](protocol::Actions& out) {
    layer->mutex_.assume_locked();
    return layer->used_.on_fork_probe(call.peer().id, message, out);
  });
}
void ProtocolService::child_settled(rpc::CallContext& call, protocol::ChildSettled message) {
  layer->act([&](protocol::Actions& out) {
    layer->mutex_.assume_locked();
    layer->used_.on_child_settled(call.peer().id, message, out);
  });
}
void ProtocolService::creation_failed(rpc::CallContext& call, protocol::CreationFailed message) {
  layer->act([&](protocol::Actions& out) {
    layer->mutex_.assume_locked();
    layer->used_.on_creation_failed(call.peer().id, message, out);
  });
}

void ProtocolService::taken_for_gone(rpc::CallContext& call) {
  layer->peer_gone(call.peer().id,
                   rpc::Error(rpc::ErrorKind::lease_lost, call.peer().id.name + " declared this agent gone"));
}

void serve_protocol(rpc::AgentCore& core, const std::shared_ptr<RRefLayer>& layer) {
  auto service = std::make_shared<ProtocolService>();
  service->layer = layer;
  rpc::detail::serve_object(core.methods(), service);
  core.methods().serve(
      object_method(detail::fetch_method, [](rpc::IncomingCall& call, const StoredObject& object) {
        const rpc::KeptValue& value = object.value();
        if (value.type->encode == nullptr)
          return call.fail(std::make_exception_ptr(
              rpc::Error(rpc::ErrorKind::unsupported,
                         "an object of type " + value.type->name + " cannot be sent: call its methods")));
        call.reply([&](rpc::ValueWriter writer) { value.type->encode(writer, value.value.get()); });
      }));
  core.methods().serve(object_method(detail::touch_method, [](rpc::IncomingCall& call, const StoredObject&) {
    call.reply([](rpc::ValueWriter writer) { writer.set_nil(); });
  }));
}

}  // namespace weft::rref
