// Owner snapshots: modules of one agent with their optimizers, as one value of one moment, that another agent
// restores (elastic training, a worker that moves).
//
//   auto state = (co_await dist_optim::take_owner_snapshot(agent, modules)).take();      // on the old owner
//   co_await dist_optim::restore_owner_snapshot(agent, other_modules, std::move(state)); // on the new owner
//
// `modules` are references to modules that live on this agent (rref.reference()). The value travels as an
// argument or a result of any method. It holds each module's parameters and buffers, its optimizer's options
// and state, and its version. Training goes on from it bit for bit as without the interruption.
//
// DistributedOptimizer::snapshot() asks for the same from afar, for one handle's optimizer and without
// versions.
//
// Thread-safe. Errors come with the future: `invalid_argument` for a reference to an object of another agent,
// or to no module.
#pragma once

#include <weft/dist_optim/service/optimizer_service.h>
#include <weft/rpc/agent/agent.h>

#include <vector>

namespace weft::dist_optim {

struct OwnerSnapshot {
  std::vector<ModuleSnapshot> modules;  // in the given order
};
WEFT_CODEC(OwnerSnapshot, modules)

// A step over several of the modules is in all of them or in none. Waits for steps that are being applied; a
// step that waits for its synchronous round is not in it. A module that no optimizer steps is read as it is:
// the caller keeps others from changing it.
WEFT_EXPORT rpc::Future<tensor::OnStreams<OwnerSnapshot>> take_owner_snapshot(
    rpc::Agent& agent, std::vector<rref::ReferencePtr> modules);

// All of it or, with an error, nothing. Each module has the snapshot's version afterwards, also where it was
// at a later one. Its optimizer need not be attached yet: the first handle with the same options goes on with
// the state. Passes that ask to read meanwhile wait. `failed_precondition` while a pass over one of the
// modules is open or a step of it is in flight; `invalid_argument` where names, shapes or the optimizer's
// state do not fit, or where attached handles have other options.
WEFT_EXPORT rpc::Future<void> restore_owner_snapshot(rpc::Agent& agent,
                                                     std::vector<rref::ReferencePtr> modules,
                                                     OwnerSnapshot snapshot);

// The same of one module on the calling thread, for a service that is called about it
// (rref::RRefLayer::Target). restore_module() restores a module that no optimizer has stepped, from a
// snapshot without an optimizer, as it is: the caller keeps others from using it.
WEFT_EXPORT ModuleSnapshot take_module(const rref::StoredObject& module);
WEFT_EXPORT void restore_module(const rpc::AgentCore& core, const std::shared_ptr<rref::StoredObject>& module,
                                ModuleSnapshot snapshot);

}  // namespace weft::dist_optim
