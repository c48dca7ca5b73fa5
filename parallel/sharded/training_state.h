// Functions that add modules, optimizers and samplers of a training run to a SlicedState, for Checkpoints.
//
//   sharded::SlicedState state;
//   fsdp.add_to(state);           // adds the parts themselves, without a copy
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
// Parameters of a tensor_parallel::SplitModule are saved as slices of the whole parameters, so that a run can
// continue with another number of ranks in its group, or with whole layers. All ranks of the mesh save
// together: sharded::Checkpoints checkpoints(world, folder).
#pragma once

#include <weft/dist_optim/local/shadow_leaves.h>
#include <weft/parallel/sharded/checkpoint/sliced_state.h>
#include <weft/parallel/tensor_parallel/split.h>
#include <weft/parallel/training/distributed_sampler.h>

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
  // For a parameter of a tensor_parallel::SplitModule: its place in the whole parameter.
  std::vector<tensor_parallel::Split> splits = {};
};

// Converts a range of the elements of a module's parameter, from `begin` on, to elements of the whole
// parameter. sizes: of the module's parameter. unsupported: it is split along several dimensions.
WEFT_EXPORT SlicedTensor slice_of_whole(const std::string& name, std::vector<std::int64_t> sizes,
                                        std::int64_t begin, at::Tensor values,
                                        const std::vector<tensor_parallel::Split>& splits);

// Adds the parameters and buffers of a module that every rank has, such as that of a DistributedDataParallel,
// and this rank's parts of split parameters. The values use the memory of the module's tensors.
WEFT_EXPORT void add_module(SlicedState& to, const torch::nn::Module& module,
                            const std::string& prefix = "model/");

// For a module that every rank has: returns its parameters, for the functions below. Each rank must have an
// elementwise optimizer for all that require grad, such as GroupPipeline::optimizer(). A frozen parameter may
// have a state, too: that of the time before it was frozen.
WEFT_EXPORT std::vector<ParameterSlice> slices_of(const torch::nn::Module& module);

// Adds the position of a sampler; all ranks must have delivered equally many batches. After load(),
// take_sampler() continues at that position, also with another number of ranks.
WEFT_EXPORT void add_sampler(SlicedState& to, const training::DistributedSampler& sampler,
                             const std::string& prefix = "sampler/");
WEFT_EXPORT void take_sampler(const SlicedState& from, training::DistributedSampler& sampler,
                              const std::string& prefix = "sampler/");

// Adds whole tensors. A tensor with several names is added under the first one. placements: those of the
// module, if some of its parameters are split. equal: all ranks have equal values; otherwise a checkpoint has
// those of the first rank that adds them (SlicedTensor::of_first_rank). unsupported: a parameter is split
// over several groups. invalid_argument: a tensor is not contiguous.
WEFT_EXPORT void add_tensors(SlicedState& to, const torch::OrderedDict<std::string, at::Tensor>& tensors,
                             const std::string& prefix,
                             const std::vector<tensor_parallel::Placement>& placements = {},
                             bool equal = false);

// Adds the other names of tensors that the state has under one of their names.
WEFT_EXPORT void add_aliases(SlicedState& to, const torch::OrderedDict<std::string, at::Tensor>& tensors,
                             const std::string& prefix);

// invalid_argument: a group of the spec has none of these parameters.
WEFT_EXPORT void expect_groups(const dist_optim::OptimizerSpec& spec,
                               const std::vector<std::string>& parameters);

// Adds the state of an optimizer of these slices.
WEFT_EXPORT void add_optimizer(SlicedState& to, const dist_optim::OptimizerState& state,
                               const std::vector<ParameterSlice>& slices, const std::string& prefix);
// Adds memory for the optimizer's state of these slices. names: the tensors of the checkpoint; states that it
// does not contain are left out.
WEFT_EXPORT void add_wanted_optimizer(SlicedState& to, const dist_optim::OptimizerSpec& spec,
                                      const std::vector<ParameterSlice>& slices,
                                      const std::vector<std::string>& names, const std::string& prefix);
// Returns the optimizer's state that load() has filled in. invalid_argument: the notes of the optimizer are
// missing, or name another optimizer.
WEFT_EXPORT dist_optim::OptimizerState optimizer_in(const SlicedState& from, const std::string& optimizer,
                                                    const std::vector<ParameterSlice>& slices,
                                                    const std::string& prefix);

}  // namespace weft::sharded
