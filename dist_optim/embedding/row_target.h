// RowTarget: the rows of an embedding's shard as the target of a ParameterHost: each row steps by its own
// gradient, with the RowOptimizer with which the embedding was created.
//
// The gradient is one sparse tensor of row_gradient() (shard_tensors.h). A step of several trainers is their
// coalesced sum: one update of the shard.
//
// Owner: the ParameterHost of the shard's HostGuard; it keeps the shard. Thread-safety: StepTarget's.
#pragma once

#include <weft/dist_optim/embedding/shard.h>

namespace weft::dist_optim {

class RowTarget final : public StepTarget {
 public:
  explicit RowTarget(std::shared_ptr<EmbeddingShard> shard) : shard_(std::move(shard)) {}

  const OptimizerSpec& spec() const override { return spec_; }
  void check(const Gradients& gradients) const override;
  void step(const Gradients& gradients) override;

 private:
  const OptimizerSpec spec_ = own_optimizer();
  const std::shared_ptr<EmbeddingShard> shard_;
};

}  // namespace weft::dist_optim
