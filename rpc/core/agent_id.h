// AgentId: identifies an agent and its incarnation. A restarted agent has the same name and another
// incarnation.
#pragma once

#include <weft/rpc/core/export.h>

#include <compare>
#include <cstdint>
#include <functional>
#include <string>

namespace weft::rpc {

struct AgentId {
  std::string name;
  std::uint64_t incarnation = 0;  // random, drawn when the agent is created

  friend auto operator<=>(const AgentId&, const AgentId&) = default;
};

WEFT_EXPORT std::string to_string(const AgentId& id);  // "worker1#3f2a9c04"

}  // namespace weft::rpc

template <>
struct std::hash<weft::rpc::AgentId> {
  std::size_t operator()(const weft::rpc::AgentId& id) const noexcept {
    return std::hash<std::string>{}(id.name) ^ (id.incarnation * 0x9e3779b97f4a7c15ULL);
  }
};
