// Owner snapshots: modules of one agent with their optimizers, as one value of one moment, which another
// agent can restore (elastic training, a worker that moves).
//
//   auto state = (co_await dist_optim::take_owner_snapshot(agent, modules)).take();      // on the old owner
//   co_await dist_optim::restore_owner_snapshot(agent, other_modules, std::move(state)); // on the new owner
//
// `modules` are references to modules that live on this agent (rref.reference()). The value can be an
// argument or a result of any method. It holds each module's parameters and buffers, its optimizer's options
// and state, and its version. Training continues from it bit for bit as without the interruption.
//
// DistributedOptimizer::snapshot() requests the same from another agent, for one handle's optimizer and
// without versions.
//
// Thread-safe. The future has the errors: `invalid_argument` for a reference to an object of another agent,
// or to an object that is no module.
#pragma once

#include <weft/dist_optim/service/optimizer_service.h>
#include <weft/rpc/agent/agent.h>

#include <vector>

namespace weft::dist_optim {

// The modules with their optimizers, at one moment.
struct OwnerSnapshot {
  std::vector<ModuleSnapshot> modules;  // in the given order
};
WEFT_CODEC(OwnerSnapshot, modules)

// A step over several of the modules is in all of them or in none. Waits for steps that are being applied; a
// step that waits for its synchronous round is not included. A module without an optimizer is read as it is:
// the caller must prevent concurrent changes.
WEFT_EXPORT rpc::Future<tensor::OnStreams<OwnerSnapshot>> take_owner_snapshot(
    rpc::Agent& agent, std::vector<rref::ReferencePtr> modules);

// All of it or, with an error, nothing. Each module then has the snapshot's version, also if it was at a
// later one. Its optimizer need not be attached yet: the first handle with the same options continues with
// the state. Passes that ask to read meanwhile wait. `failed_precondition` while a pass over one of the
// modules is open or a step of it is in flight; `invalid_argument` if names, shapes or the optimizer's state
// do not fit, or if attached handles have other options.
WEFT_EXPORT rpc::Future<void> restore_owner_snapshot(rpc::Agent& agent,
                                                     std::vector<rref::ReferencePtr> modules,
                                                     OwnerSnapshot snapshot);

// The same for one module on the calling thread, for a service that is called on it
// (rref::RRefLayer::Target). restore_module() restores a module that no optimizer has stepped, from a
// snapshot without an optimizer, without protection: the caller must prevent concurrent use.
WEFT_EXPORT ModuleSnapshot take_module(const rref::StoredObject& module);
WEFT_EXPORT void restore_module(const rpc::AgentCore& core, const std::shared_ptr<rref::StoredObject>& module,
                                ModuleSnapshot snapshot);

}  // namespace weft::dist_optim
