// MethodTable: the methods that an agent serves, by id, and the limits on their calls.
//
// Owned by the agent. Thread-safety: MethodEntry is immutable once it is served; all functions of MethodTable
// may be called from any thread.
#pragma once

#include <weft/rpc/call/call_accounts.h>
#include <weft/rpc/core/mutex.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace weft::rpc {

class IncomingCall;
struct KeptValue;

// The limits of one method, in calls of all peers together.
struct MethodLimit {
  std::size_t running = 0;  // at a time, from admission until the answer; at least 1
  std::size_t waiting = 0;  // for admission; further calls are refused
};

// MethodGate: limits the number of calls of one method that run at the same time, and the number that wait.
// Further calls are refused with resource_exhausted before they are queued, so that a slow method does not
// use all memory and threads. Calls are admitted in the order of their arrival; a cancelled call gives up its
// place. Thread-safety: all functions may be called from any thread.
class WEFT_EXPORT MethodGate : public std::enable_shared_from_this<MethodGate> {
 public:
  explicit MethodGate(MethodLimit limit);

  // Admits the call now or later, or refuses it.
  void enter(const std::shared_ptr<IncomingCall>& call);
  void leave();  // an admitted call has ended: admits the next one

 private:
  void give_up(const IncomingCall* call);

  const MethodLimit limit_;
  Mutex mutex_;
  std::size_t running_ WEFT_GUARDED_BY(mutex_) = 0;
  std::deque<std::shared_ptr<IncomingCall>> waiting_ WEFT_GUARDED_BY(mutex_);
};

// The calls of one method since it was served. accepted: does not include requests that the agent refused
// because of permissions, its own limits, or draining. answered: includes failed calls and completed
// notifications.
struct MethodCounters {
  Counter accepted, answered, failed;  // failed: answered with an error
};

// One method, with its types erased.
struct MethodEntry {
  std::string name;       // "service.method"
  std::uint64_t id = 0;   // name_hash(name)
  std::string service;    // for a member function: the service of its object
  std::string signature;  // in the canonical grammar
  std::uint64_t signature_hash = 0;
  std::vector<std::string> parameters;  // the canonical type of each parameter
  std::string result;
  bool idempotent = false;
  bool non_blocking = false;
  // true: calls in flight need this method, so it is served until the agent has drained, and its calls use no
  // credit.
  bool control = false;
  bool background = false;    // the option `background` of a method
  bool needs_object = false;  // a member function: runs on `object`, or on the object that a layer resolves
  std::shared_ptr<void> object;      // the served singleton
  std::shared_ptr<MethodGate> gate;  // null: the method has no limit
  // The object within a value that a layer keeps. null: the value has another type.
  void* (*object_in)(const KeptValue& value) = nullptr;

  std::shared_ptr<MethodCounters> counters;  // set by MethodTable::serve

  // Decodes the arguments, runs the handler and answers the call. Called on the call's executor.
  std::function<void(std::shared_ptr<IncomingCall>)> run;
};

class WEFT_EXPORT MethodTable {
 public:
  void serve(MethodEntry entry);  // already_exists: the name is in use
  // Limits the calls of the method of that name. The method may be served later.
  void limit(const std::string& name, MethodLimit limit);
  std::shared_ptr<const MethodEntry> find(std::uint64_t id) const;  // null: no such method
  std::vector<std::shared_ptr<const MethodEntry>> all() const;      // by name
  // Removes all methods and releases all served objects.
  void clear();

 private:
  using Entries = std::unordered_map<std::uint64_t, std::shared_ptr<MethodEntry>>;

  mutable std::shared_mutex mutex_;  // guards all members
  Entries entries_;
  // Entries that limit() replaced; calls may still use them.
  std::vector<std::shared_ptr<MethodEntry>> replaced_;
  std::map<std::string, std::shared_ptr<MethodGate>> gates_;  // by the method's name
};

}  // namespace weft::rpc
