// Protocol: the version of weft's protocol and the features that are in force on a connection, from what the
// two hellos say (docs/wire_protocol.md, 2). Values.
//
// A version is raised where an older peer could not follow; whatever a peer can do without is a feature bit.
// Both lists are of this build alone; whoever adds to them keeps what docs/compatibility.md promises.
#pragma once

#include <weft/rpc/core/export.h>
#include <weft/rpc/wire/message.h>

namespace weft::rpc {

// What one side speaks.
struct ProtocolRange {
  std::uint16_t oldest = 1, newest = 1;
  std::uint64_t features = 0;  // bits
};

namespace features {
inline constexpr std::uint64_t sessions = 1;  // resumable frames and `received` (rpc/agent/session.h)
}  // namespace features

// What this build offers in its hello.
inline constexpr ProtocolRange own_protocol{.features = features::sessions};

// What is in force.
struct Protocol {
  std::uint16_t version = 1;
  std::uint64_t features = 0;

  bool has(std::uint64_t feature) const { return (features & feature) == feature; }  // all of these bits
  friend bool operator==(const Protocol&, const Protocol&) = default;
};

// The highest version in both ranges, the features that both set. `name`: of this side, for the message.
// unsupported where the ranges have no version in common, protocol_error where the peer's is none.
WEFT_EXPORT Protocol negotiate(const ProtocolRange& own, const std::string& name, const HelloInfo& peer);

}  // namespace weft::rpc
