// SyncBatchNorm: batch normalization with the statistics of all ranks' batches together.
//
//   norm = register_module("norm", data_parallel::SyncBatchNorm(torch::nn::BatchNormOptions(64),
//   norm_group));
//
// In training, forward gathers each rank's count, mean and variance, and backward reduces two sums for each
// channel. The ranks may have batches of different sizes. The result is that of a BatchNorm over the
// concatenated batch. In evaluation mode it computes the same as BatchNorm. Inputs have the shape [N, C] or
// [N, C, ...] and any floating-point type; statistics are computed in float32, or in float64 for float64.
//
// Backward runs these collectives between the collectives that reduce gradients. So the group must run no
// other collectives: use for example `group.split(0).get().value()`. Collectives block; forward() and
// backward() throw their errors. Not thread-safe. For ranks with different numbers of batches, see
// SyncBatchNorms.
#pragma once

#include <weft/parallel/collectives/group.h>
#include <weft/parallel/data_parallel/join.h>
#include <weft/parallel/training/batch_norm_variant.h>

#include <memory>
#include <vector>

namespace weft::data_parallel {

// The implementation that a SyncBatchNorm holds. group: the ranks whose statistics are combined; in training
// all of them call forward.
class WEFT_EXPORT SyncBatchNormImpl final : public training::BatchNormVariant<SyncBatchNormImpl> {
 public:
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& options, collectives::Group group);

  at::Tensor forward(const at::Tensor& input);  // of the input's shape
  void pretty_print(std::ostream& stream) const override;

  // Take part, with an empty batch, in the collectives of a forward and of a backward. The other ranks'
  // inputs must have the dtype and device of the parameters or, without parameters, of the running
  // statistics.
  void shadow_forward();
  void shadow_backward();

 private:
  const at::Tensor& weight_or_mean() const { return weight.defined() ? weight : running_mean; }

  collectives::Group group_;
};
TORCH_MODULE(SyncBatchNorm);

// Replaces each BatchNorm1d, 2d and 3d within torch::nn::Sequential containers, at any depth, by a
// SyncBatchNorm with its parameters and buffers, and returns the names of the replaced modules. Call it
// before the optimizer and the DistributedDataParallel are created. failed_precondition: a BatchNorm is a
// member of another module, whose holder cannot be replaced from outside. Declare such a member as a
// SyncBatchNorm.
WEFT_EXPORT std::vector<std::string> convert_sync_batch_norm(torch::nn::Module& module,
                                                             const collectives::Group& group);

// The SyncBatchNorms of a module within Replica::join: a rank without a batch takes part in their
// collectives.
class WEFT_EXPORT SyncBatchNorms final : public Joinable {
 public:
  // in_order: the order in which forward reaches them. Default: the order of registration.
  explicit SyncBatchNorms(const torch::nn::Module& module);
  explicit SyncBatchNorms(std::vector<SyncBatchNorm> in_order) : norms_(std::move(in_order)) {}

  void shadow_forward(int source) override;
  void shadow_backward() override;
  void finish_join(int) override {}

 private:
  std::vector<SyncBatchNorm> norms_;
};

}  // namespace weft::data_parallel
