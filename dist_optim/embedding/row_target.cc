#include <weft/dist_optim/embedding/row_target.h>

#include <weft/dist_optim/local/internal/row_tensors.h>

namespace weft::dist_optim {

void RowTarget::check(const Gradients& gradients) const {
  for (const auto& [index, gradient] : gradients) {
    if (!gradient.defined()) continue;
    if (index != 0 || !gradient.is_sparse() || !gradient.is_coalesced() || gradient.sparse_dim() != 1 ||
        gradient.dense_dim() != 1)
      throw rpc::Error(rpc::ErrorKind::invalid_argument,
                       "embedding: gradient " + std::to_string(index) + " of a step has layout " +
                           c10::str(gradient.layout()) + " and sizes " + c10::str(gradient.sizes()) +
                           ", expected only gradient 0, coalesced and sparse in its rows");
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
