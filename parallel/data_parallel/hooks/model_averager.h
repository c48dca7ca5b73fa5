// PeriodicModelAverager: averages the parameters of a module over the ranks every few steps.
//
//   averager.step(model->parameters());  // on all ranks, after each optimizer.step()
//
// It is for training in which the ranks step independently: local SGD, and post-local SGD with a
// PostLocalSgdHook. In the hierarchical form, small groups average often, and larger groups seldom. The state
// of optimizers is not averaged. After the last step, call average_parameters() to make all ranks equal. Not
// thread-safe.
#pragma once

#include <weft/parallel/collectives/group.h>

#include <ATen/core/Tensor.h>
#include <torch/serialize/archive.h>

#include <cstdint>
#include <map>
#include <vector>

namespace weft::data_parallel {

// Averages tensors in place, with one collective for each dtype and device. All ranks of the group call it
// with tensors of the same shapes, and it blocks.
WEFT_EXPORT void average_parameters(const collectives::Group& group, const std::vector<at::Tensor>& tensors);
// The same without blocking.
WEFT_EXPORT rpc::Future<void> average_tensors(const collectives::Group& group,
                                              const std::vector<at::Tensor>& tensors);

class WEFT_EXPORT PeriodicModelAverager {
 public:
  // groups: maps each period, in steps, to the group over which this rank averages. If several periods divide
  // a step, only the group of the largest period averages. warmup_steps: the number of first steps without
  // averaging; periods count from the end of these steps. invalid_argument: groups is empty, a period < 1, or
  // warmup_steps < 0.
  explicit PeriodicModelAverager(std::map<std::int64_t, collectives::Group> groups,
                                 std::int64_t warmup_steps = 0);

  // Counts a step, and averages if a period has ended. Returns whether it has averaged.
  bool step(const std::vector<at::Tensor>& parameters);
  std::int64_t steps() const { return steps_; }

  // The state is the number of steps.
  void save(torch::serialize::OutputArchive& archive) const;
  void load(torch::serialize::InputArchive& archive);

 private:
  const std::map<std::int64_t, collectives::Group> groups_;
  const std::int64_t warmup_steps_;
  std::int64_t steps_ = 0;
};

}  // namespace weft::data_parallel
