// Protocol: the protocol version and the features of a connection, negotiated from the two hellos
// (docs/internals/wire_protocol.md, 2). Thread-safety: values.
//
// The version is increased for a change that an older peer cannot handle; an optional extension is a feature
// bit. This file lists the versions and features of this build. Changes must keep the promises of
// docs/compatibility.md.
#pragma once

#include <weft/rpc/core/export.h>
#include <weft/rpc/wire/message.h>

namespace weft::rpc {

// The versions and features of one side.
struct ProtocolRange {
  std::uint16_t oldest = 1, newest = 1;
  std::uint64_t features = 0;  // bits
};

namespace features {
inline constexpr std::uint64_t sessions = 1;  // numbered frames (rpc/endpoint/session.h)
}  // namespace features

// The offer of this build in its hello.
inline constexpr ProtocolRange own_protocol{.features = features::sessions};

// The result of the negotiation.
struct Protocol {
  std::uint16_t version = 1;
  std::uint64_t features = 0;

  bool has(std::uint64_t feature) const { return (features & feature) == feature; }  // all of these bits
  friend bool operator==(const Protocol&, const Protocol&) = default;
};

// The highest version in both ranges, and the common features. name: this side's name, for errors. Throws
// unsupported if the ranges do not overlap, protocol_error if the peer's range is invalid.
WEFT_EXPORT Protocol negotiate(const ProtocolRange& own, const std::string& name, const HelloInfo& peer);

}  // namespace weft::rpc
