// Carried: the RRef layer's CallPart in one outgoing call or reply. It writes the section "rref", and reports
// to the tables how each hand-over ended. The first reference in a message creates the Carried in the
// message's slots.
//
// The sender of a reply or a notification does not learn whether the message arrived. The tables then wait
// for messages of the receiver, or for the end of the connection to it. Hand-overs that are never sent are
// undone by the destructor. Thread-safety: as CallPart.
#pragma once

#include <weft/rpc/wire/message.h>
#include <weft/rref/rref_layer.h>

namespace weft::rref {

class Carried final : public rpc::CallPart {
 public:
  // The part of this message. Creates it if the message has none.
  static std::shared_ptr<Carried> of(rpc::OutgoingMessage& message, const std::shared_ptr<RRefLayer>& layer);
  explicit Carried(std::shared_ptr<RRefLayer> layer) : layer_(std::move(layer)) {}
  ~Carried() override;

  // The references in the message. set_target(): the object that the request is for. set_result(): the object
  // that the result becomes. add(): a reference within a value; returns its index, which value_field encodes.
  void set_target(const ReferencePtr& reference);
  void set_result(const ReferencePtr& reference, const protocol::Handover& handover, std::string site,
                  std::optional<std::string> name);
  std::uint64_t add(rpc::OutgoingMessage& message, const ReferencePtr& reference);

  void seal(rpc::OutgoingMessage& message) override;
  void ended(const std::exception_ptr& error) override;

 private:
  const std::shared_ptr<RRefLayer> layer_;
  RRefSection section_;
  ReferencePtr own_target_;  // if this agent owns the target
  // If another agent owns the target: the fork that the request holds, without a handle.
  std::optional<ForkId> target_fork_;
  std::weak_ptr<Reference> result_;
  std::vector<ReferencePtr> references_;  // keeps the references that are handed over
  bool reply_ = false;
  bool notification_ = false;
  bool sealed_ = false;
  bool over_ = false;
};

}  // namespace weft::rref
