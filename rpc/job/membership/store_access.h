// StoreAccess: the store of a job, where it is kept, and how this agent closes it.
#pragma once

#include <weft/rpc/endpoint/agent_core.h>
#include <weft/rpc/job/membership/rendezvous.h>
#include <weft/rpc/job/store/store.h>

#include <functional>
#include <memory>
#include <string>

namespace weft::rpc::detail {

struct StoreAccess {
  // Null: this agent finds the host, which keeps the store, through the program's store while it joins.
  std::shared_ptr<Store> store;
  bool with_host = false;  // the host's agent keeps the store, which ends with that agent
  // The name of a host. Peers reach this host at its local address on the route to that host.
  std::string towards;
  std::shared_ptr<Loop> loop;   // for timers that must not be delayed: not a loop that the program may block
  std::function<void()> close;  // ends all waits; set if the store is kept in this process
  std::function<Future<void>()> discard;  // removes the store, at the end of a fixed world
};

// The StoreAccess of a Rendezvous. Throws invalid_argument if its URL or the agent's options are invalid.
StoreAccess store_access(const std::shared_ptr<AgentCore>& core, const Rendezvous& rendezvous);

// The job's store in messages.
std::string title_of_store(const Rendezvous& rendezvous);

}  // namespace weft::rpc::detail
