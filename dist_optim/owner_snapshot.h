// Owner snapshots: a snapshot is one value that holds modules of one agent with their optimizers, all read at
// one moment. Another agent can restore it (elastic training, a worker that moves to another host).
//
//   auto state = (co_await dist_optim::take_owner_snapshot(agent, modules)).take();      // on the old owner
//   co_await dist_optim::restore_owner_snapshot(agent, other_modules, std::move(state)); // on the new owner
//
// `modules` are references to modules that live on this agent (rref.reference()). The value can be an
// argument or a result of any method. It holds each module's parameters and buffers, its optimizer's options
// and state, and its version. Training that continues from a snapshot gives the same bits as training that
// was not interrupted.
//
// DistributedOptimizer::snapshot() reads modules of other agents in the same way. Its result has the states
// of that handle's optimizers, and no versions.
//
// Thread-safe. The futures report the errors. `invalid_argument`: a reference is to an object of another
// agent or to an object that is not a module, or an object occurs twice.
#pragma once

#include <weft/dist_optim/service/module_snapshot.h>
#include <weft/rpc/agent/agent.h>
#include <weft/rpc/tensor/on_streams.h>
#include <weft/rref/reference.h>
#include <weft/rref/stored_object.h>

#include <vector>

namespace weft::dist_optim {

// The modules with their optimizers, at one moment.
struct OwnerSnapshot {
  std::vector<ModuleSnapshot> modules;  // in the given order
};
WEFT_CODEC(OwnerSnapshot, modules)

// Reads the modules. A step over several of the modules is in all of them or in none. Waits for steps that
// are being applied; a step that waits for its synchronous round is not included. If a module has no
// optimizer, the caller must prevent concurrent changes of it.
WEFT_EXPORT rpc::Future<tensor::OnStreams<OwnerSnapshot>> take_owner_snapshot(
    rpc::Agent& agent, std::vector<rref::ReferencePtr> modules);

// Restores the whole snapshot or, with an error, changes nothing. Each module then has the version in the
// snapshot, even if it had a later version before. A handle of the optimizer need not exist yet: the first
// handle with the same options continues with the state. If a pass requests to read a module during the
// restore, the pass waits. `failed_precondition`: a pass over one of the modules is open, or a step of it is
// in flight. `invalid_argument`: the snapshot has another number of modules, other names or shapes, or an
// optimizer's state that does not match, or attached handles have other options.
WEFT_EXPORT rpc::Future<void> restore_owner_snapshot(rpc::Agent& agent,
                                                     std::vector<rref::ReferencePtr> modules,
                                                     OwnerSnapshot snapshot);

// take_module() and restore_module() do the same for one module, on the calling thread. They are for a
// service that is called on the module (rref::RRefLayer::Target). If no optimizer has stepped the module and
// the snapshot has no optimizer, restore_module() takes no lock: the caller must prevent concurrent use.
WEFT_EXPORT ModuleSnapshot take_module(const rref::StoredObject& module);
WEFT_EXPORT void restore_module(const rpc::AgentCore& core, const std::shared_ptr<rref::StoredObject>& module,
                                ModuleSnapshot snapshot);

}  // namespace weft::dist_optim
