// MethodEntry: one method that an agent serves, with its types erased.
// Thread-safety: immutable once registered.
#pragma once

#include <weft/rpc/agent/agent_counts.h>
#include <weft/rpc/core/export.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace weft::rpc {

class IncomingCall;
class MethodGate;
struct KeptValue;

struct MethodEntry {
  std::string name;       // "service.method"
  std::uint64_t id = 0;   // name_hash(name)
  std::string service;    // of a member function: the service that its object must be
  std::string signature;  // in the canonical grammar
  std::uint64_t signature_hash = 0;
  std::vector<std::string> parameters;  // canonical type of each
  std::string result;
  bool idempotent = false;
  bool non_blocking = false;
  bool upkeep = false;  // what is under way needs it: served until its agent has drained, and without credit
  bool background = false;           // as the option of a method says
  bool needs_object = false;         // a member function: runs on `object`, or on what a layer above resolves
  std::shared_ptr<void> object;      // the served singleton
  std::shared_ptr<MethodGate> gate;  // of a method with a limit
  void* (*object_in)(const KeptValue& value) =
      nullptr;  // the object within what a layer keeps; null: it is of another type

  std::shared_ptr<MethodCounters> counters;  // of an entry that an agent serves

  // Decodes the arguments, runs the handler and ends the call. On the call's executor.
  std::function<void(std::shared_ptr<IncomingCall>)> run;
};

}  // namespace weft::rpc
