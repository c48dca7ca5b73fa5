// Ids of remote objects and of references to them, unique over all agents without a central authority.
//
// A *birth* is the event that makes a new fork of an object. An agent numbers its births for each other agent
// separately and without gaps, from a base that is derived from the other agent's random incarnation. The
// bases keep ids unique over all agents. Because the numbers are dense, the other agent can remember every
// number that it has seen as a few ranges (number_set.h). So the protocol's messages are idempotent in
// bounded memory. docs/internals/rref_protocol.md, "Ids", is the specification. Thread-safety: values.
#pragma once

#include <weft/rpc/core/agent_id.h>
#include <weft/rpc/core/export.h>

#include <compare>
#include <cstdint>
#include <functional>
#include <string>

namespace weft::rref {

// Two kinds of ids that never mix: RRefId identifies an object, ForkId one agent's reference to it.
template <class Tag>
struct GlobalId {
  std::uint64_t origin = 0;  // incarnation of the agent that made the id
  std::uint64_t number = 0;

  friend auto operator<=>(const GlobalId&, const GlobalId&) = default;
};

// The id of an object, and of one reference to it.
using RRefId = GlobalId<struct RRefTag>;
using ForkId = GlobalId<struct ForkTag>;

// The creator's own fork has the same number as the object, because one birth makes both.
inline ForkId creators_fork(const RRefId& rref) { return {rref.origin, rref.number}; }

// The first numbers of births; numbers wrap at 2^64. birth_base(): of births by users at the owner with this
// incarnation. lend_base(): of births by an owner for the user with this incarnation.
constexpr std::uint64_t birth_base(std::uint64_t owner) { return owner; }
constexpr std::uint64_t lend_base(std::uint64_t user) { return user + (std::uint64_t{1} << 63); }

// For logs and listings: origin and number in hexadecimal.
WEFT_EXPORT std::string to_string(const RRefId& id);  // "3f2a9c0411d0b7e2:8c1d03aa5520f871"
WEFT_EXPORT std::string to_string(const ForkId& id);

}  // namespace weft::rref

template <class Tag>
struct std::hash<weft::rref::GlobalId<Tag>> {
  std::size_t operator()(const weft::rref::GlobalId<Tag>& id) const noexcept {
    return id.origin * 0x9e3779b97f4a7c15ULL ^ id.number;
  }
};
