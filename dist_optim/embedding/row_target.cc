#include <weft/dist_optim/embedding/row_target.h>

#include <weft/dist_optim/embedding/shard_tensors.h>

namespace weft::dist_optim {

OptimizerSpec RowTarget::rows_spec() {
  OptimizerSpec spec;
  spec.name = "rows";
  return spec;
}

ParameterHost::MakeTarget RowTarget::maker(std::shared_ptr<EmbeddingShard> shard) {
  return [shard = std::move(shard)](const OptimizerSpec& spec) -> std::unique_ptr<StepTarget> {
    if (!(spec == rows_spec()))
      throw rpc::Error(rpc::ErrorKind::invalid_argument,
                       "a shard's rows are stepped by their embedding's optimizer, not by " +
                           to_string(spec) + ": give the DistributedOptimizer the ShardedEmbedding");
    return std::make_unique<RowTarget>(shard);
  };
}

void RowTarget::check(const Gradients& gradients) const {
  for (const auto& [index, gradient] : gradients) {
    if (!gradient.defined()) continue;
    if (index != 0 || !gradient.is_sparse() || !gradient.is_coalesced() || gradient.sparse_dim() != 1 ||
        gradient.dense_dim() != 1)
      throw rpc::Error(rpc::ErrorKind::invalid_argument,
                       "an embedding's rows take one coalesced sparse gradient");
    shard_->check_gradient(gradient.indices().reshape(-1), gradient.values().contiguous());
  }
}

void RowTarget::step(const Gradients& gradients) {
  check(gradients);
  for (const auto& [index, gradient] : gradients) {
    if (!gradient.defined()) continue;
    shard_->apply(gradient.indices().reshape(-1), gradient.values().contiguous());
  }
}

}  // namespace weft::dist_optim
