// OwnedParametersGuard: controls the calls on a module behind RRefs, once an optimizer is attached. A call in
// a pass reads the version of the parameters to which its pass is pinned, and so does the pass's backward.
//
// The first optimizer attaches it to the StoredObject, which keeps it. Thread-safe.
#pragma once

#include <weft/dist_autograd/pass.h>
#include <weft/dist_optim/local/owned_parameters.h>
#include <weft/rpc/core/mutex.h>
#include <weft/rpc/core/slots.h>
#include <weft/rref/stored_object.h>

#include <set>

namespace weft::dist_optim {

class OwnedParametersGuard final : public rref::ObjectGuard,
                                   public std::enable_shared_from_this<OwnedParametersGuard> {
 public:
  // number: identifies this object among the objects of its agent that optimizers step.
  OwnedParametersGuard(std::vector<Parameter> parameters, std::uint64_t number)
      : number_(number), owned_(std::move(parameters)) {}
  OwnedParametersGuard(OwnedParameters::MakeTarget make, std::uint64_t number)
      : number_(number), owned_(std::move(make)) {}

  std::uint64_t number() const { return number_; }  // the constructor's argument
  OwnedParameters& owned() { return owned_; }       // lives as long as the guard
  // The data of a higher layer for the object, found by type, and made from owned() at the first call.
  template <class Part>
  Part& part() {
    rpc::MutexLock lock(parts_mutex_);
    if (Part* known = parts_.find<Part>()) return *known;
    return parts_.put(std::make_shared<Part>(owned_));
  }
  template <class Part>
  Part* find_part() const {  // null if part() was not called
    rpc::MutexLock lock(parts_mutex_);
    return parts_.find<Part>();
  }
  void admit(const std::shared_ptr<rpc::IncomingCall>& call, rpc::Callback proceed) override;
  void read(const std::function<void()>& body) override;
  void change(const std::function<void()>& body) override { owned_.change(body); }

  // Some passes of the agent may have to wait at this object. As long as a trainer that was passed to
  // ask_trainer() is registered at the owner, the guard first calls the agent for each of these passes. The
  // agent admits the pass to all objects in one order (PassAdmission).
  void ask_trainer(const rpc::AgentId& agent, const std::string& trainer);

 private:
  void admit_here(const std::shared_ptr<rpc::IncomingCall>& call,
                  const std::shared_ptr<dist_autograd::PassState>& pass, rpc::Callback proceed);
  std::optional<rpc::AgentId> trainer_to_ask(const rpc::AgentId& origin, const dist_autograd::PassId& pass);

  const std::uint64_t number_;
  rpc::Mutex mutex_;
  std::map<rpc::AgentId, std::set<std::string>> asked_ WEFT_GUARDED_BY(mutex_);  // trainers, by agent
  OwnedParameters owned_;
  mutable rpc::Mutex parts_mutex_;
  rpc::Slots parts_ WEFT_GUARDED_BY(parts_mutex_);  // parts use owned_: they are destroyed before it
};

// The ids by which a OwnedParameters identifies passes and trainers. The id of a trainer is the AgentId of
// its agent. If the agent has several trainers, the name of the trainer follows it. A pass belongs to its
// origin, or to the trainer for which it was admitted.
inline PassKey key_of(const dist_autograd::PassId& pass) { return {pass.origin, pass.number}; }
std::string trainer_of(const rpc::AgentId& agent, const std::string& name = {});
// Whether `trainer` is a trainer of the agent.
bool is_trainer_of(const std::string& trainer, const rpc::AgentId& agent);
// The agent that created the pass, as an agent without a name if `host` does not know it. The owner then
// knows the pass only from other agents' calls.
rpc::AgentId origin_of(const dist_autograd::PassId& pass, const rpc::CallHost& host);

}  // namespace weft::dist_optim
