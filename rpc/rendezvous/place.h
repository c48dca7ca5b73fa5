// Place: where a job keeps its store, and how this agent closes it.
#pragma once

#include <weft/rpc/endpoint/agent_core.h>
#include <weft/rpc/store/store.h>

#include <functional>
#include <memory>
#include <string>

namespace weft::rpc::detail {

struct Place {
  std::shared_ptr<Store> store;
  bool with_host = false;       // the host's agent keeps it, and it ends with that agent
  std::string towards;          // a host whose route determines the address of this host for others
  std::shared_ptr<Loop> loop;   // for timers that must not be delayed: not a loop that the program may block
  std::function<void()> close;  // ends all waits; set if the store is kept in this process
  std::function<Future<void>()> discard;  // at the end of a fixed world
};

// Of a Rendezvous. Throws invalid_argument.
Place place_of_store(const std::shared_ptr<AgentCore>& core, const Rendezvous& rendezvous);

}  // namespace weft::rpc::detail
