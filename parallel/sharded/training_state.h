// What Checkpoints save of a training run: modules and optimizers as a SlicedState.
//
//   sharded::SlicedState state;
//   fsdp.add_to(state);           // the values are the parts themselves
//   optimizer.add_to(state);
//   sharded::add_sampler(state, sampler);
//   state.notes["loss"] = std::to_string(loss);
//   auto saved = checkpoints.save(step, state);
//   ...
//   sharded::SlicedState state;   // on any number of ranks
//   fsdp.add_to(state);
//   optimizer.add_wanted_to(state, checkpoints.names(step));
//   sharded::add_sampler(state, sampler);
//   state.notes = checkpoints.load(step, state);     // writes into the parts
//   optimizer.take_from(state);
//   sharded::take_sampler(state, sampler);
//
// Call get() on the future of a save before the next save: the error of a future that is dropped is not
// reported. Parameters are "model/NAME", states of optimizers "optimizer/NAME/FIELD"; the optimizer's name
// and its learning rates are the notes "optimizer/name" and "optimizer/learning_rate/GROUP".
//
// Parameters of a tensor_parallel::SplitModule are saved as the ranks of its group have them, under the sizes
// of the whole ones: a run continues with another number of ranks in that group, or with whole layers. All
// ranks of the mesh save together: sharded::Checkpoints checkpoints(world, folder).
#pragma once

#include <weft/dist_optim/local/shadow_leaves.h>
#include <weft/parallel/data_parallel/distributed_sampler.h>
#include <weft/parallel/sharded/checkpoint/sliced_state.h>
#include <weft/parallel/tensor_parallel/split.h>

#include <torch/nn/module.h>
#include <torch/ordered_dict.h>

#include <cstdint>
#include <string>
#include <vector>

namespace weft::sharded {

// Elements [begin, end) of a flattened parameter that an optimizer steps.
struct ParameterSlice {
  std::string parameter;
  std::vector<std::int64_t> sizes;  // of the parameter as the module has it
  std::int64_t begin = 0, end = 0;
  dist_optim::Parameter leaf;  // as dist_optim::slice_of() names it
  // How the module's parameter is a part of the whole one: of a tensor_parallel::SplitModule.
  std::vector<tensor_parallel::Split> splits = {};
};

// A range of the elements of a parameter, from `begin` on, as elements of the whole one. sizes: of the
// parameter as the module has it. unsupported: it is split along several dimensions.
WEFT_EXPORT SlicedTensor slice_of_whole(const std::string& name, std::vector<std::int64_t> sizes,
                                        std::int64_t begin, at::Tensor values,
                                        const std::vector<tensor_parallel::Split>& splits);

// The parameters and buffers of a module that each rank has, as of a DistributedDataParallel, and the parts
// that this rank has of split parameters. The values are its tensors' memory.
WEFT_EXPORT void add_module(SlicedState& to, const torch::nn::Module& module,
                            const std::string& prefix = "model/");

// The parameters of such a module that require grad, for the functions below. The optimizer is element-wise,
// and each rank has it for all parameters, as GroupPipeline::optimizer() does.
WEFT_EXPORT std::vector<ParameterSlice> slices_of(const torch::nn::Module& module);

// Where a sampler is; the ranks have delivered equally many batches. After load(), take_sampler() continues
// there, also on another number of ranks.
WEFT_EXPORT void add_sampler(SlicedState& to, const data_parallel::DistributedSampler& sampler,
                             const std::string& prefix = "sampler/");
WEFT_EXPORT void take_sampler(const SlicedState& from, data_parallel::DistributedSampler& sampler,
                              const std::string& prefix = "sampler/");

// Adds whole tensors. A tensor with several names has the first one. placements: of the module that has the
// tensors, if some of its parameters are split. unsupported: a parameter is split over several groups.
// invalid_argument: one that is not contiguous.
WEFT_EXPORT void add_tensors(SlicedState& to, const torch::OrderedDict<std::string, at::Tensor>& tensors,
                             const std::string& prefix,
                             const std::vector<tensor_parallel::Placement>& placements = {});

// invalid_argument: a group of the spec has none of these parameters.
WEFT_EXPORT void expect_groups(const dist_optim::OptimizerSpec& spec,
                               const std::vector<std::string>& parameters);

// The state of an optimizer of these slices.
WEFT_EXPORT void add_optimizer(SlicedState& to, const dist_optim::OptimizerState& state,
                               const std::vector<ParameterSlice>& slices, const std::string& prefix);
// Space for the states that a checkpoint with these names has of the slices. Notes say which optimizer it is,
// and its learning rates.
WEFT_EXPORT void add_wanted_optimizer(SlicedState& to, const dist_optim::OptimizerSpec& spec,
                                      const std::vector<ParameterSlice>& slices,
                                      const std::vector<std::string>& names, const std::string& prefix);
// invalid_argument: the notes are missing, or name another optimizer.
WEFT_EXPORT dist_optim::OptimizerState optimizer_in(const SlicedState& from, const std::string& optimizer,
                                                    const std::vector<ParameterSlice>& slices,
                                                    const std::string& prefix);

}  // namespace weft::sharded
