// DeferredBatchNorm: batch normalization whose running statistics are computed over mini-batches instead of
// micro-batches (torchgpipe).
//
//   norm = register_module("norm", pipeline::DeferredBatchNorm(torch::nn::BatchNormOptions(64)));
//
// In training, forward() normalizes each micro-batch separately, as a BatchNorm does. The running statistics
// change once for each mini-batch, as if a BatchNorm had processed the whole mini-batch. The pipeline
// executors end the mini-batch when a step completes; if a step fails on this worker, the running statistics
// are unchanged. Other training loops must call end_minibatch(). In evaluation mode the module computes the
// same as BatchNorm.
//
// Inputs have the shape [N, C] or [N, C, ...]. The sums of the open mini-batch are a buffer of the module,
// which is zero between steps. A recomputation restores the buffers, so a forward that is recomputed counts
// once. Without running statistics a DeferredBatchNorm computes the same as BatchNorm. Not thread-safe.
#pragma once

#include <weft/parallel/pipeline/stage_graph.h>
#include <weft/parallel/training/batch_norm_variant.h>

#include <string>
#include <vector>

namespace weft::pipeline {

// The implementation that a DeferredBatchNorm holds.
class WEFT_EXPORT DeferredBatchNormImpl final : public training::BatchNormVariant<DeferredBatchNormImpl> {
 public:
  explicit DeferredBatchNormImpl(const torch::nn::BatchNormOptions& options);

  // Shares the parameters and buffers of a batch norm.
  template <class BatchNorm>
  void take_over(const BatchNorm& like) {
    BatchNormVariant::take_over(like);
    sums_.set_data(sums_.to(running_mean.options()));
  }

  at::Tensor forward(const at::Tensor& input);  // of the input's shape
  // Updates the running statistics by the micro-batches since the last call. If there were no micro-batches,
  // the call has no effect.
  void end_minibatch();
  void drop_minibatch();  // drops the statistics of these micro-batches

  void reset() override;
  void pretty_print(std::ostream& stream) const override;

 private:
  void add_microbatch(const at::Tensor& input);

  at::Tensor sums_;  // of the open mini-batch: count, means, sums of squared deviations
  bool has_microbatches_ = false;
};
TORCH_MODULE(DeferredBatchNorm);

// Replaces each BatchNorm1d, 2d and 3d that has running statistics, within torch::nn::Sequential containers,
// at any depth, by a DeferredBatchNorm with its parameters and buffers, and returns the names of the replaced
// modules. failed_precondition: such a BatchNorm is a member of another module. Declare this member as a
// DeferredBatchNorm. Call it before the model is cut into stages and the optimizer is created.
WEFT_EXPORT std::vector<std::string> convert_deferred_batch_norm(torch::nn::Module& module);

// Ends the mini-batch of all DeferredBatchNorms of the stages in this process. Executors call it after a
// step. If `completed` is true, it calls end_minibatch(), otherwise drop_minibatch().
WEFT_EXPORT void end_minibatch(const StageGraph& graph, bool completed);

}  // namespace weft::pipeline
