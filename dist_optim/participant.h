// StepParticipant: a group of objects that a DistributedOptimizer steps in addition to modules, and whose
// gradients are on the trainer. An example is a ShardedEmbedding: its rows are leaves of the trainer's
// passes.
//
// Shared by the DistributedOptimizers that step it. Thread-safe.
#pragma once

#include <weft/dist_autograd/pass.h>
#include <weft/rpc/core/future.h>
#include <weft/rref/reference.h>

#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace weft::dist_optim {

struct StepRows;

class StepParticipant {
 public:
  // Admit: requests the admission of a pass before its first read (PassAdmission).
  using Ptr = std::shared_ptr<StepParticipant>;
  using Admit = std::function<rpc::Future<void>(const dist_autograd::PassId&)>;

  virtual ~StepParticipant() = default;
  // The stepped objects, each a SteppedObject on its owner.
  virtual std::vector<rref::ReferencePtr> objects() const = 0;
  // Returns the gradients of the passes for each of the objects(). count: the number of objects() that the
  // caller steps; `failed_precondition` if this number has changed.
  virtual std::vector<StepRows> step_rows(std::span<const dist_autograd::Pass> passes,
                                          std::size_t count) const = 0;
  // Calls `admit` for each pass before the pass first reads one of the objects, as long as the optimizer
  // keeps `admit`.
  virtual void admit_with(const std::shared_ptr<const Admit>& admit) = 0;
};

}  // namespace weft::dist_optim
