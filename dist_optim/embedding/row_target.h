// RowTarget: the rows of an embedding's shard as the StepTarget of a OwnedParameters. The RowOptimizer of the
// embedding steps each row with the gradient of that row.
//
// The gradient is one sparse tensor, made by row_gradient() (local/row_tensors.h). If several trainers step
// together, the gradient is the coalesced sum of theirs, and the shard is updated once.
//
// Owner: the OwnedParameters of the shard's OwnedParametersGuard. The target keeps the shard alive. As
// thread-safe as StepTarget.
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
