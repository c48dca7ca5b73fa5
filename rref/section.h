// The section "rref" of a request or reply: the references that it carries, and what the call does to them.
//
// Every call that creates or uses an object has such a section, so its encoding is short: it omits empty
// fields, and agents that the message names already. docs/internals/rref_protocol.md, "Messages", is the
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
    "weft.rref";  // the field of the record {weft.rref: index} that represents an RRef

// The section, decoded.
struct RRefSection {
  std::optional<protocol::Handover> target;  // the object that the request is for
  std::optional<protocol::Handover> result;  // the object that the result becomes; it stays at the owner
  std::string site;  // location in the program that created `result`: "train.cc:12"; "" if unknown
  std::optional<std::string> name;          // the name of the object for `result` (rref::Named)
  std::vector<protocol::Handover> carried;  // the RRefs within the values
  // The addresses of carried[i].owner, with spaces between; "" if unknown.
  std::vector<std::string> owner_addresses;
  // The transit number of carried[i] if an agent sends it to itself; otherwise 0.
  std::vector<std::uint64_t> local;

  // receiver: the incarnation that the message is for; nullopt: the sender does not know it. If it is set,
  // the message reaches no other incarnation.
  void write(rpc::ValueWriter writer, const rpc::AgentId& sender,
             const std::optional<rpc::AgentId>& receiver) const;
  // Throws type_mismatch, invalid_argument or protocol_error if the value is not such a section.
  static RRefSection read(const rpc::ValueReader& reader, const rpc::AgentId& sender,
                          const rpc::AgentId& receiver);
};

template <class Tag>
constexpr std::string_view weft_name(GlobalId<Tag>*) {
  return "GlobalId";
}
template <class Tag>
constexpr auto weft_fields(GlobalId<Tag>*) {
  return std::tuple{rpc::detail::FieldOf<GlobalId<Tag>, std::uint64_t>{"origin", &GlobalId<Tag>::origin},
                    rpc::detail::FieldOf<GlobalId<Tag>, std::uint64_t>{"number", &GlobalId<Tag>::number}};
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
