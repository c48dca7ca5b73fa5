// SyncBatchNorm: batch normalization with the statistics of all ranks' batches together.
//
//   norm = register_module("norm", data_parallel::SyncBatchNorm(torch::nn::BatchNormOptions(64),
//   norm_group));
//
// In training, forward gathers each rank's count, mean and variance, and backward reduces two sums for each
// channel. The ranks may have batches of different sizes. The result is that of a BatchNorm over the
// concatenated batch. In evaluation it is a BatchNorm. Inputs have the shape [N, C] or [N, C, ...] and any
// floating-point type; statistics are computed in float32, or in float64 for float64.
//
// The group is one that runs no other collectives, for example of `group.split(0)`: backward runs its
// collectives between those of the gradients. Collectives block; their errors are thrown by forward() and
// backward(). Not thread-safe. As a Joinable, see Replica::join.
#pragma once

#include <weft/parallel/collectives/group.h>
#include <weft/parallel/data_parallel/batch_norm_variant.h>
#include <weft/parallel/data_parallel/join.h>

#include <memory>
#include <vector>

namespace weft::data_parallel {

// SyncBatchNorm holds this. group: of the ranks whose statistics are joined; in training all of them call
// forward.
class WEFT_EXPORT SyncBatchNormImpl final : public BatchNormVariant<SyncBatchNormImpl> {
 public:
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& options, collectives::Group group);

  at::Tensor forward(const at::Tensor& input);  // of the input's shape
  void pretty_print(std::ostream& stream) const override;

  // An empty batch's part of the collectives of a forward and of a backward. The other ranks' inputs have the
  // dtype and the device of the parameters or of the statistics.
  void shadow_forward();
  void shadow_backward();

 private:
  const at::Tensor& weight_or_mean() const { return weight.defined() ? weight : running_mean; }

  collectives::Group group_;
};
TORCH_MODULE(SyncBatchNorm);

// Replaces each BatchNorm1d, 2d and 3d within torch::nn::Sequential containers, at any depth, by a
// SyncBatchNorm with its parameters and buffers, and returns the names of the replaced modules.
// failed_precondition if a BatchNorm is a member of another module: its holder there cannot be exchanged from
// outside, so declare it as a SyncBatchNorm. Before the optimizer and the DistributedDataParallel are
// created.
WEFT_EXPORT std::vector<std::string> convert_sync_batch_norm(torch::nn::Module& module,
                                                             const collectives::Group& group);

// The SyncBatchNorms of a module within Replica::join: a rank without a batch takes part in their
// collectives.
class WEFT_EXPORT SyncBatchNorms final : public Joinable {
 public:
  // In the order in which forward reaches them, which is that of registration unless given.
  explicit SyncBatchNorms(const torch::nn::Module& module);
  explicit SyncBatchNorms(std::vector<SyncBatchNorm> in_order) : norms_(std::move(in_order)) {}

  void shadow_forward(int source) override;
  void shadow_backward() override;
  void finish_join(int) override {}

 private:
  std::vector<SyncBatchNorm> norms_;
};

}  // namespace weft::data_parallel
