// The section "rref" of a request or reply: the references that it carries, and what the call does to them.
//
// Every call that creates or uses an object has one, so it is encoded briefly: empty fields are left out, and
// so are agents that the message names already. docs/internals/rref_protocol.md, "Messages", is the
// specification. Thread-safety: values.
#pragma once

#include <weft/rpc/codec/agent_id_codec.h>
#include <weft/rpc/codec/struct_codec.h>
#include <weft/rref/protocol/messages.h>

#include <optional>
#include <string>
#include <vector>

namespace weft::rref {

// The key of the section in a message.
inline constexpr std::string_view section_key = "rref";
inline constexpr std::string_view value_field =
    "weft.rref";  // an RRef as a value: a record {weft.rref: index}

// The section, decoded.
struct RRefSection {
  std::optional<protocol::Handover> target;  // a request to this object
  std::optional<protocol::Handover> result;  // the result stays at the owner as this object
  std::string site;  // location in the program that created `result`: "train.cc:12"; "" if unknown
  std::optional<std::string> name;           // of the object that `result` shall share (rref::Named)
  std::vector<protocol::Handover> carried;   // RRefs among the values
  std::vector<std::string> owner_addresses;  // of carried[i].owner, joined by spaces; "" if unknown
  std::vector<std::uint64_t> local;  // carried[i] stays within one agent: its transit number; otherwise 0

  // receiver: set if the sender knows the incarnation that the message is for. The message then reaches no
  // other incarnation.
  void write(rpc::ValueWriter writer, const rpc::AgentId& sender,
             const std::optional<rpc::AgentId>& receiver) const;
  // type_mismatch, invalid_argument or protocol_error if the value is not such a section.
  static RRefSection read(const rpc::ValueReader& reader, const rpc::AgentId& sender,
                          const rpc::AgentId& receiver);
};

template <class Tag>
constexpr std::string_view weft_name(GlobalId<Tag>*) {
  return "GlobalId";
}
template <class Tag>
constexpr auto weft_fields(GlobalId<Tag>*) {
  return std::tuple{rpc::detail::FieldOf{"origin", &GlobalId<Tag>::origin},
                    rpc::detail::FieldOf{"number", &GlobalId<Tag>::number}};
}

namespace protocol {

WEFT_CODEC(ForkAdd, rref, fork, creator, parent)
WEFT_CODEC(ForkDelete, rref, fork)
WEFT_CODEC(ForkFence, rref, fork)
WEFT_CODEC(ForkProbe, rref, fork)
WEFT_CODEC(ProbeReply, held)
WEFT_CODEC(ChildSettled, fork, by_owner)
WEFT_CODEC(CreationFailed, rref, fork, failure)
WEFT_CODEC(Standing, verdict, creation_failure)

}  // namespace protocol
}  // namespace weft::rref
