// change_all(): changes several objects, which may have several owners. First all owners check their parts;
// only if all of them accept these, they change their objects.
#pragma once

#include <weft/dist_autograd/module/remote_module.h>
#include <weft/dist_optim/local/optimizer_state.h>
#include <weft/rpc/core/task.h>
#include <weft/rref/reference.h>

#include <functional>
#include <string>
#include <vector>

namespace weft::dist_optim {

// The change of one object.
struct ObjectChange {
  using Ask = std::function<rpc::Future<void>()>;  // begins a call to the owner
  rref::ReferencePtr object;                       // that changes
  std::string name;                                // in errors
  std::vector<Ask> checks;                         // fail if the owner would refuse the change
  Ask apply;                                       // makes the change
};

// If a check fails, nothing changes, and the task fails with that error. An owner may still fail after the
// checks, for example because it dies. If other objects have then changed, the error lists these. The object
// of a call that failed without an answer of its owner may have changed.
rpc::Task<void> change_all(std::string operation, std::vector<ObjectChange> changes);

// Returns states that an owner accepts exactly if it accepts the given ones. A tensor that is not a number
// has no values of its own, and is sent as one element.
dist_autograd::StateDict without_values(dist_autograd::StateDict state);
OptimizerState without_values(OptimizerState state);

}  // namespace weft::dist_optim
