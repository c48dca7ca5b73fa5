// ShardedOptimizer: an optimizer for a data parallel module, whose state is split over the ranks (ZeRO-1;
// Rajbhandari et al., 2020).
//
//   data_parallel::DistributedDataParallel ddp{group, model};
//   sharded::ShardedOptimizer optimizer(ddp, torch::optim::AdamWOptions(3e-4));
//   ...
//   optimizer.zero_grad();
//   loss.backward();       // averages the gradients
//   optimizer.step();      // steps the part of this rank; the ranks exchange their parts
//
// The parameters are moved into flat buckets. Each of N ranks has the optimizer's state
// of its part of each bucket, about 1/N of the whole. step() steps that part, and gathers the other parts
// from the other ranks. The resulting parameters have the same bits as if every rank stepped the whole
// parameters. A parameter without a gradient is not stepped. Parameter groups are those of the OptimizerSpec.
//
// All ranks call step() the same number of times, with equal gradients. Collectives run in a group of this
// optimizer alone. If a rank does not call step(), the other ranks fail with deadline_exceeded, which names
// that rank. After a failed step the parameters are unspecified, and all further steps fail with
// failed_precondition: restore the parameters, and call set_group().
//
// In a join (`ddp.join(range, {}, {&optimizer})`), each iteration whose gradients are reduced has one
// step(). A rank without a batch steps its part with the gradients of a rank with a batch, as they are when
// that rank calls step(), for example after clipping.
//
// A step does not change the version counters of autograd: if a forward ran before the step and its backward
// runs after it, the backward uses the new values without an error. Gradients of a dist_autograd::Pass are
// not stepped. Not thread-safe.
#pragma once

#include <weft/dist_optim/local/shadow_leaves.h>
#include <weft/parallel/data_parallel/replica.h>
#include <weft/parallel/sharded/training_state.h>
#include <weft/parallel/training/communication_stream.h>

#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace weft::sharded {

class FlatParameters;

// The options must be equal on all ranks.
struct ShardedOptimizerOptions {
  // A bucket is closed when it has at least this many bytes. A bucket is gathered while the next one is
  // stepped.
  std::size_t bucket_bytes = std::size_t{25} << 20;
  // true: steps each parameter in backward, as soon as its gradient is averaged, and gathers a bucket as soon
  // as all of its parameters have stepped. step() then waits for the remaining gathers. The default is false,
  // because gradients that are used at once cannot be clipped or tested for infinite values. Call step()
  // after each backward that is reduced. A parameter whose gradient no rank has computed is not stepped, even
  // if it has an earlier gradient. A failed backward counts as a failed step. Do not use it with an
  // OptimizerInBackward.
  bool overlap = false;
};

class WEFT_EXPORT ShardedOptimizer final : public data_parallel::Joinable {
 public:
  // Optimizes the replica's parameters that require grad. If others begin to require grad later, the ranks
  // compare them at the next step, which also steps them; a parameter that ceases to require grad keeps its
  // state. All ranks call the constructor, and it blocks. The replica must outlive the optimizer. Do not use
  // tensors that autograd saved before this call. invalid_argument on all
  // ranks: some rank refuses the spec or a parameter (OptimizerSpec::is_elementwise, FlatParameters::check),
  // a parameter group has no parameter, or the ranks have different parameters or specs (the error names the
  // first difference).
  ShardedOptimizer(data_parallel::Replica& replica, dist_optim::OptimizerSpec spec,
                   ShardedOptimizerOptions options = {});
  // If an exception destroys the optimizer, its group is aborted, so that no other rank waits for the
  // timeout.
  ~ShardedOptimizer() override;
  ShardedOptimizer(const ShardedOptimizer&) = delete;
  ShardedOptimizer& operator=(const ShardedOptimizer&) = delete;

  // All ranks call it, and it blocks. If torch::load has replaced values of parameters since the last step,
  // the step starts at the loaded values. invalid_argument: a gradient is sparse. Without `overlap`, nothing
  // has then changed. failed_precondition: a parameter has another type, device or other sizes now.
  void step();
  // Resets the gradients of all parameters of the optimizer. set_to_none false: gradients become zero.
  void zero_grad(bool set_to_none = true);

  // The learning rate of the parameter group with this prefix; "" means the parameters that are in no group.
  // set_learning_rate() with nullopt sets all groups. All ranks must set equal rates. not_found: no group has
  // this prefix.
  double learning_rate(const std::string& group = {}) const { return leaves_->learning_rate(group); }
  void set_learning_rate(double rate, const std::optional<std::string>& group = {});

  // A copy of this rank's part of the state. The tensors belong to slices: PARAMETER[BEGIN:END]/FIELD.
  dist_optim::OptimizerState state() const;
  // Returns the state for whole parameters, in host memory, at the root; root = nullopt: on all ranks. On
  // other ranks the result has no tensors. The ranks exchange one parameter at a time, so that a rank needs
  // memory for the result, its own part twice, and one parameter. All ranks call it, and it blocks.
  // unsupported: a parameter is split over tensor ranks; add_to() saves such a state.
  dist_optim::OptimizerState whole_state(std::optional<int> root = 0) const;
  // Loads this rank's part of the state; runs no collective. states: together they must contain the whole
  // state, for example state() of all ranks of an earlier run, or one whole_state(). invalid_argument:
  // dist_optim::reslice() fails, or a tensor belongs to an unknown parameter. The state is then unchanged.
  void set_state(const std::vector<dist_optim::OptimizerState>& states);

  // See training_state.h. take_from() drops the gradients of a backward that was not followed by a step().
  // add_wanted_to(): all ranks call it. If `names` has the state of parameters that are frozen, the optimizer
  // keeps it until they require grad: they are moved into buckets, and the call blocks.
  void add_to(SlicedState& state, const std::string& prefix = "optimizer/") const;
  void add_wanted_to(SlicedState& state, const std::vector<std::string>& names,
                     const std::string& prefix = "optimizer/");
  void take_from(const SlicedState& state, const std::string& prefix = "optimizer/");

  // Splits the state over the new group. All ranks of the new group call it after Replica::set_group(). A new
  // rank constructs its optimizer and calls set_state() instead. Afterwards, all ranks optimize the
  // parameters that any of them has optimized. states: as in set_state(). The part of a lost rank is lost, so
  // the states must have been saved before the loss. If `states` is empty, the learning rates are kept, and
  // the rest of the state starts at zero.
  void set_group(const std::vector<dist_optim::OptimizerState>& states);

  const dist_optim::OptimizerSpec& spec() const { return spec_; }  // the optimizer, with its options

 private:
  // This rank's slice of a parameter.
  struct Slice {
    std::size_t index = 0;  // in leaves_
    std::int64_t begin = 0, end = 0, offset = 0;
    at::Tensor of(const at::Tensor& gradient) const;
  };
  // The progress of one step.
  struct Round {
    std::vector<std::uint8_t> arrived;  // by parameter: 1 if it has a gradient and its slice has stepped
    std::vector<std::size_t> missing;   // by bucket: parameters that have not arrived
    std::size_t next = 0;               // buckets whose gather has started
    std::vector<rpc::Future<void>> in_flight;
    bool began = false;
  };

  void shadow_forward(int) override {}
  void shadow_backward() override {}
  void shadow_step(int source) override;
  void finish_join(int) override {}

  void start(bool has_new_group);
  void find_parameters(const std::set<std::string>& names_of_frozen = {});
  void find_parameters_of_all_ranks(bool has_new_group);
  void add_parameters(const std::set<std::string>& names_of_frozen);
  void add_buckets(std::size_t first_parameter);
  std::vector<ParameterSlice> slices() const;
  std::vector<std::string> describe() const;
  void compare() const;
  void begin_round();
  void on_reduced(std::size_t parameter);
  void take(std::size_t parameter);
  void receive(int source, std::size_t bucket);
  void give(std::size_t bucket);
  void launch_next();
  void finish_round();
  void require_no_round(const char* operation) const;
  void drop_round();
  void require_usable() const;
  template <class F>
  void or_fail(F f);

  data_parallel::Replica& replica_;
  const dist_optim::OptimizerSpec spec_;
  const ShardedOptimizerOptions options_;
  const int exceptions_ = std::uncaught_exceptions();
  std::optional<collectives::Group> group_;
  std::vector<at::Tensor> replicated_;  // the replica's parameters
  std::vector<dist_optim::Parameter> parameters_;
  std::vector<std::vector<tensor_parallel::Split>> splits_;  // by parameter
  std::vector<std::optional<std::size_t>> indices_;          // in parameters_, by the replica's indices
  const std::unique_ptr<FlatParameters> flat_;
  std::vector<std::size_t> bucket_of_;                                   // by parameter
  std::vector<std::shared_ptr<training::CommunicationStream>> streams_;  // by bucket; one for each device
  std::vector<std::optional<Slice>> own_;                                // by parameter
  std::vector<dist_optim::Parameter> slices_;                            // of leaves_
  std::unique_ptr<dist_optim::ShadowLeaves> leaves_;
  Round round_;
  std::optional<std::string> failure_;  // why no step is possible
};

}  // namespace weft::sharded
