// AgentId: identifies an agent and its incarnation. A restarted agent has the same name and another
// incarnation.
#pragma once

#include <compare>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>

namespace weft::rpc {

struct AgentId {
  std::string name;
  std::uint64_t incarnation = 0;  // random, drawn when the agent is created

  friend auto operator<=>(const AgentId&, const AgentId&) = default;
};

// "worker1#3f2a9c04"
inline std::string to_string(const AgentId& id) {
  char tail[20];
  std::snprintf(tail, sizeof tail, "#%08llx", static_cast<unsigned long long>(id.incarnation >> 32));
  return id.name + tail;
}

}  // namespace weft::rpc

template <>
struct std::hash<weft::rpc::AgentId> {
  std::size_t operator()(const weft::rpc::AgentId& id) const noexcept {
    return std::hash<std::string>{}(id.name) ^ (id.incarnation * 0x9e3779b97f4a7c15ULL);
  }
};
