// The receiving side of calls that carry references, create objects or run on them (RRefLayer as CallHook).
#include <weft/rref/rref.h>
#include <weft/rref/rref_layer.h>

#include <weft/rpc/core/mutex.h>
#include <weft/rpc/transport/address.h>
#include <weft/rpc/wire/value.h>

#include <sstream>

namespace weft::rref {

// Keeps the result of a call as the object that its creator named. However the call ends, the creation ends
// once.
class CreationSink final : public rpc::ResultSink {
 public:
  CreationSink(std::shared_ptr<RRefLayer> layer, const RRefId& id) : layer_(std::move(layer)), id_(id) {}

  // The call creates a named object, for which other callers may wait. Call take_name() before the call runs.
  void take_name(std::string name) { name_ = std::move(name); }
  void finish(StoredObjects::Found object) {
    if (finished_.exchange(true)) return;
    layer_->finish_creation(id_, object);
    if (name_) layer_->named_.finish(*name_, std::move(object));
  }

  void keep(rpc::KeptValue value) override {
    auto object = std::make_shared<StoredObject>(std::move(value), layer_->handler_threads());
    layer_->sizes_.measure(*object);
    finish(std::move(object));
  }
  void failed(std::exception_ptr error) override { finish(std::move(error)); }

 private:
  const std::shared_ptr<RRefLayer> layer_;
  const RRefId id_;
  std::optional<std::string> name_;
  std::atomic<bool> finished_{false};
};

// Waits for several events, then continues or fails the call, once. The code that creates the Gate also calls
// arrive() once, after its last expect().
class Gate {
 public:
  Gate(std::shared_ptr<rpc::IncomingCall> call, rpc::Callback next)
      : call_(std::move(call)), next_(std::move(next)) {}

  void expect() { ++open_; }
  void arrive(const std::exception_ptr& error) {
    if (error != nullptr) {
      rpc::MutexLock lock(mutex_);
      if (error_ == nullptr) error_ = error;
    }
    if (--open_ != 0) return;
    const auto call = std::move(call_);
    rpc::Callback next = std::move(next_);
    std::exception_ptr failure;
    {
      rpc::MutexLock lock(mutex_);
      failure = error_;
    }
    if (failure != nullptr) return call->fail(failure);
    try {
      next();
    } catch (...) {
      call->fail(std::current_exception());
    }
  }

 private:
  std::shared_ptr<rpc::IncomingCall> call_;
  rpc::Callback next_;
  std::atomic<int> open_{1};
  rpc::Mutex mutex_;
  std::exception_ptr error_ WEFT_GUARDED_BY(mutex_);
};

namespace {

std::exception_ptr error(rpc::ErrorKind kind, const std::string& message) {
  return std::make_exception_ptr(rpc::Error(kind, message));
}

protocol::Fault denial(protocol::Access access) {
  switch (access) {
    case protocol::Access::ready:
    case protocol::Access::waiting:
      return protocol::Fault::none;
    case protocol::Access::failed:
      return protocol::Fault::creation_failed;
    case protocol::Access::lease_lost:
      return protocol::Fault::lease_lost;
    case protocol::Access::gone:
      break;
  }
  return protocol::Fault::refused;
}

std::vector<std::string> addresses_in(const std::string& text) {
  std::vector<std::string> addresses;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    try {
      addresses.push_back(rpc::Address::parse(word).text());
    } catch (const rpc::Error&) {
      // The address is of a kind that this agent does not know.
    }
  }
  return addresses;
}

// The arguments in which two creations must agree to share one name. The value of an RRef is its index in its
// message, so the ids are compared in addition.
std::string arguments_text(rpc::IncomingCall& call, const std::vector<ReferencePtr>& references) {
  std::string text(call.method());
  for (std::size_t i = 0; i < call.argument_count(); ++i) text += ' ' + rpc::render(call.argument(i));
  for (const ReferencePtr& reference : references) text += ' ' + to_string(reference->id());
  return text;
}

// If `value` is an RRef that was sent for a declared value: the index of the RRef in its message.
std::optional<std::uint64_t> stand_in(const std::string& declared, const rpc::ValueReader& value) {
  if (declared.starts_with("rref<") || value.kind() != rpc::ValueKind::record || value.size() != 1 ||
      value.field_name(0) != value_field)
    return std::nullopt;
  return value.field_at(0).get_uint();
}

}  // namespace

void RRefLayer::incoming(std::shared_ptr<rpc::IncomingCall> call, rpc::Callback next) {
  const auto value = call->message().section(section_key);
  if (!value) return next();
  const RRefSection section = RRefSection::read(*value, call->peer().id, self_);
  if (core_->ended())
    return call->fail(error(section.target ? rpc::ErrorKind::owner_lost : rpc::ErrorKind::shut_down,
                            self_.name + " has shut down"));

  // The creation is accepted first: a later error is then the failure of the object, which its users receive.
  std::shared_ptr<CreationSink> creation;
  if (section.result) {
    creation = accept_creation(section, *call);
    if (creation == nullptr) return;
  }
  auto gate = std::make_shared<Gate>(call, [self = shared_from_this(), call, creation, name = section.name,
                                            next = std::move(next)]() mutable {
    self->fetch_arguments(call, [self, call, creation, name, next = std::move(next)]() mutable {
      self->begin(call, std::move(creation), name, std::move(next));
    });
  });
  auto received = std::make_shared<Received>(receive(section, call->peer().id));
  call->message().slots().put(received);
  if (received->failed != nullptr) {
    gate->expect();
    gate->arrive(received->failed);
  }
  for (const ReferencePtr& reference : received->references) {
    gate->expect();
    when_confirmed(reference, [gate](const std::exception_ptr& failed) { gate->arrive(failed); });
  }
  if (section.target) resolve_target(*section.target, call, gate);
  gate->arrive(nullptr);
}

void RRefLayer::replied(rpc::IncomingMessage& message, const rpc::AgentId& from) {
  const auto value = message.section(section_key);
  if (!value) return;
  Received received;
  try {
    received = receive(RRefSection::read(*value, from, self_), from);
  } catch (...) {
    received.failed = std::current_exception();
  }
  message.slots().put(std::make_shared<Received>(std::move(received)));
}

// --- References ---

RRefLayer::Received RRefLayer::receive(const RRefSection& section, const rpc::AgentId& from) {
  Received received;
  const auto refuse = [&](std::exception_ptr why) {
    if (received.failed == nullptr) received.failed = std::move(why);
  };
  // All references are accepted, even after one that fails: the sender waits for a report of each.
  act([&](protocol::Actions& out) WEFT_REQUIRES(mutex_) {
    for (std::size_t i = 0; i < section.carried.size(); ++i) {
      const protocol::Handover& handover = section.carried[i];
      ReferencePtr reference;
      protocol::Fault why = protocol::Fault::none;
      if (section.local[i] != 0) {
        if (auto node =
                from == self_ ? transit_.extract(section.local[i]) : decltype(transit_)::node_type{}) {
          reference = std::move(node.mapped());
        } else {
          refuse(error(rpc::ErrorKind::invalid_argument,
                       "the local reference " + std::to_string(section.local[i]) + " is not in flight"));
          continue;
        }
      } else if (handover.owner == self_) {
        why = denial(owned_.receive(from, handover, out));
        if (why == protocol::Fault::none)
          reference = std::make_shared<Reference>(shared_from_this(), handover.rref, std::nullopt, self_);
      } else {
        if (auto addresses = addresses_in(section.owner_addresses[i]);
            !addresses.empty() && !owned_.is_dropped(handover.owner))
          addresses_.try_emplace(handover.owner, std::move(addresses));
        why = used_.receive(from, handover, out);
        if (why == protocol::Fault::none)
          reference =
              std::make_shared<Reference>(shared_from_this(), handover.rref, handover.fork, handover.owner);
      }
      if (reference != nullptr) received.references.push_back(std::move(reference));
      if (why != protocol::Fault::none)
        refuse(fault(why, owned_.failure(handover.rref), handover.owner, handover.rref));
    }
  });
  return received;
}

// --- The object that the call runs on ---

void RRefLayer::resolve_target(const protocol::Handover& target,
                               const std::shared_ptr<rpc::IncomingCall>& call,
                               const std::shared_ptr<Gate>& gate) {
  const RRefId id = target.rref;
  const rpc::AgentId& from = call->peer().id;
  std::string failure;
  const auto access = act([&](protocol::Actions& out) WEFT_REQUIRES(mutex_) {
    if (from == self_) {
      owned_.hold(id);
      return protocol::Access::ready;
    }
    const auto found = owned_.begin_request(from, target, out);
    failure = owned_.failure(id);
    return found;
  });
  gate->expect();
  if (const auto why = denial(access); why != protocol::Fault::none)
    return gate->arrive(fault(why, failure, self_, id));
  // From here on, the hold belongs to a reference, which releases it.
  auto held = std::make_shared<Reference>(shared_from_this(), id, std::nullopt, self_);
  when_alive(held, [call, gate, held](StoredObjects::Found found) {
    if (!found.ok()) return gate->arrive(found.error());
    const auto object = found.value();
    const rpc::MethodEntry& method = call->entry();
    // A method of the object's own class or of a base runs on it; a method of another service may concern the
    // object (weft.autograd.root).
    void* self = nullptr;
    if (method.needs_object && method.object_in != nullptr) self = method.object_in(object->value());
    if (self != nullptr) {
      call->set_object({object, self});
    } else if (method.needs_object && method.object == nullptr) {
      return gate->arrive(
          error(rpc::ErrorKind::type_mismatch,
                "'" + method.name + "' called on an object of type " + object->value().type->name));
    }
    if (!object->value().type->concurrent) call->set_executor(StoredObject::turn_of(object));
    call->slots().put(std::make_shared<Target>(Target{held, object, self != nullptr}));
    gate->arrive(nullptr);
  });
}

// --- Arguments ---

// Replaces every argument that is an RRef, if its method declares a value, by that value.
void RRefLayer::fetch_arguments(const std::shared_ptr<rpc::IncomingCall>& call, rpc::Callback next) {
  auto gate = std::make_shared<Gate>(call, std::move(next));
  const auto& parameters = call->entry().parameters;
  for (std::size_t i = 0; i < call->argument_count() && i < parameters.size(); ++i) {
    const auto place = stand_in(parameters[i], call->argument(i));
    if (!place) continue;
    const ReferencePtr reference = decode(call->message(), *place);
    const rpc::Peer owner = peer(reference->owner()).with(*call);
    rpc::OutgoingCall fetch = owner.calls().make(detail::fetch_method, 0);
    target(reference, fetch);
    fetch.begin();
    fetch.end();
    gate->expect();
    owner.calls().start(std::move(fetch), [gate, call, i, reference](rpc::Result<Reply> reply) {
      std::exception_ptr failed;
      try {
        auto message = explain(std::move(reply), *reference->about()).get();
        call->replace_argument(i, message->result(), message);
      } catch (...) {
        failed = std::current_exception();
      }
      gate->arrive(failed);
    });
  }
  gate->arrive(nullptr);
}

void RRefLayer::begin(const std::shared_ptr<rpc::IncomingCall>& call, std::shared_ptr<CreationSink> creation,
                      const std::optional<std::string>& name, rpc::Callback next) {
  // The guard is looked up in the object's turn: a guard that an earlier call attached is then found.
  if (const auto* target = call->slots().find<Target>())
    call->set_admission([call = call.get(), object = target->object](rpc::Callback proceed) {
      if (const auto guard = object->guard()) return guard->admit(call->share(), std::move(proceed));
      proceed();
    });
  if (creation != nullptr && name) {
    const auto text = arguments_text(*call, call->message().slots().find<Received>()->references);
    const bool first = named_.begin(*name, text, [call, creation](StoredObjects::Found found) {
      if (!found.ok()) return call->fail(found.error());
      creation->finish(std::move(found));
      call->reply([](rpc::ValueWriter writer) { writer.set_nil(); });
    });
    if (!first) return;
    creation->take_name(*name);
  }
  next();
}

// --- Creation ---

std::shared_ptr<CreationSink> RRefLayer::accept_creation(const RRefSection& section,
                                                         rpc::IncomingCall& call) {
  const rpc::AgentId& from = call.peer().id;
  const RRefId id = section.result->rref;
  std::exception_ptr refused;
  if (section.result->owner != self_) {
    refused = error(rpc::ErrorKind::invalid_argument,
                    "a creation for the owner " + section.result->owner.name + " arrived at " + self_.name);
  } else if (from == self_) {
    rpc::MutexLock lock(mutex_);
    unbegun_.erase(id);
  } else {
    const auto standing = act([&](protocol::Actions& out) WEFT_REQUIRES(mutex_) {
      return owned_.begin_create(
          from, id,
          {call.entry().result, section.site.empty() ? "" : section.site + " on " + from.name, now()}, out);
    });
    if (standing.verdict == protocol::Verdict::lease_lost) {
      refused = fault(protocol::Fault::lease_lost, {}, self_, id);
    } else if (standing.verdict == protocol::Verdict::ended) {
      refused = fault(protocol::Fault::refused, {}, self_, id);
    }
  }
  if (refused != nullptr) {
    call.fail(refused);
    return nullptr;
  }
  auto creation = std::make_shared<CreationSink>(shared_from_this(), id);
  call.set_sink(creation);
  return creation;
}

void RRefLayer::finish_creation(const RRefId& id, StoredObjects::Found object) {
  std::optional<std::string> failure;
  if (!object.ok()) {
    failure = core_->hooks().text_of(object.error());
    object = fault(protocol::Fault::creation_failed, *failure, self_, id);
  }
  objects_.settle(id, std::move(object));
  act([&](protocol::Actions& out) WEFT_REQUIRES(mutex_) {
    if (!ended_) owned_.finish_create(id, failure, out);
  });
}

}  // namespace weft::rref
