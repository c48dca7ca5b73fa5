#include <weft/rpc/wire/protocol.h>

#include <algorithm>

namespace weft::rpc {
namespace {

std::string text_of(std::uint16_t oldest, std::uint16_t newest) {
  return oldest == newest ? std::to_string(oldest) : std::to_string(oldest) + " to " + std::to_string(newest);
}

}  // namespace

Protocol negotiate(const ProtocolRange& own, const std::string& name, const HelloInfo& peer) {
  if (peer.version_min > peer.version_max)
    throw Error(ErrorKind::protocol_error,
                "bad frame: a Hello of versions " + text_of(peer.version_min, peer.version_max));
  const auto version = std::min(own.newest, peer.version_max);
  if (version < std::max(own.oldest, peer.version_min))
    throw Error(ErrorKind::unsupported, "no common protocol version: '" + name + "' speaks " +
                                            text_of(own.oldest, own.newest) + ", '" + peer.name + "' " +
                                            text_of(peer.version_min, peer.version_max));
  return {version, own.features & peer.features};
}

}  // namespace weft::rpc
