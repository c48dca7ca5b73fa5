// Place: where a job keeps its store, and what its end means there.
#pragma once

#include <weft/rpc/agent/agent_core.h>
#include <weft/rpc/store/store.h>

#include <functional>
#include <memory>
#include <string>

namespace weft::rpc::detail {

struct Place {
  std::shared_ptr<Store> store;
  bool with_host = false;       // kept by the host's agent: it ends with it
  std::string towards;          // a host that others reach, too: the way there says what address they see
  std::shared_ptr<Loop> loop;   // of timers that must not stand still: not one that the program may block
  std::function<void()> close;  // ends everybody's waits; where it is kept here
  std::function<Future<void>()> discard;  // at the end of a job of fixed size
};

// Of a Rendezvous. Throws invalid_argument.
Place place_of_store(const std::shared_ptr<AgentCore>& core, const Rendezvous& rendezvous);

}  // namespace weft::rpc::detail
