#include <weft/rpc/core/agent_id.h>

#include <cstdio>

namespace weft::rpc {

std::string to_string(const AgentId& id) {
  char tail[20];
  std::snprintf(tail, sizeof tail, "#%08llx", static_cast<unsigned long long>(id.incarnation >> 32));
  return id.name + tail;
}

}  // namespace weft::rpc
