// Carried: the RRef layer's part in one call or reply on the sending side: it writes the section, and tells
// the tables how each hand-over ended. Made when the first reference is involved; found in the message's
// slots.
//
// How a reply or a notification ended nobody tells its sender: there the receivers' messages decide, or the
// end of their connection. Whatever is never sent is taken back when this is destroyed. See CallPart for its
// thread-safety.
#pragma once

#include <weft/rpc/agent/call_part.h>
#include <weft/rref/rref_layer.h>

namespace weft::rref {

class Carried final : public rpc::CallPart {
 public:
  static std::shared_ptr<Carried> of(rpc::OutgoingMessage& message, const std::shared_ptr<RRefLayer>& layer);
  explicit Carried(std::shared_ptr<RRefLayer> layer) : layer_(std::move(layer)) {}
  ~Carried() override;

  void set_target(const ReferencePtr& reference);
  void set_result(const ReferencePtr& reference, const protocol::Handover& handover, std::string site,
                  std::optional<std::string> name);
  std::uint64_t add(rpc::OutgoingMessage& message, const ReferencePtr& reference);

  void seal(rpc::OutgoingMessage& message) override;
  void ended(const std::exception_ptr& error) override;

 private:
  const std::shared_ptr<RRefLayer> layer_;
  RRefSection section_;
  ReferencePtr own_target_;            // where this agent owns it
  std::optional<ForkId> target_fork_;  // where another does: the request holds the fork, not a handle
  std::weak_ptr<Reference> result_;
  std::vector<ReferencePtr> references_;  // keeps what is handed over
  bool reply_ = false;
  bool notification_ = false;
  bool sealed_ = false;
  bool over_ = false;
};

}  // namespace weft::rref
