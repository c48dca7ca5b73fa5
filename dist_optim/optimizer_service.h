// OptimizerService: what a DistOptimizer asks of the owners of its parameters. Every call is about an object
// behind an RRef and takes its turn in the object's queue.
//
// A step over objects of one owner is one `step` an object: the owner decides it when all have come. One
// over several owners is `prepare` on every object, then `commit` or `abort` on every object: the trainer
// decides.
#pragma once

#include <weft/dist_optim/context.h>
#include <weft/dist_optim/local/optimizer_spec.h>
#include <weft/dist_optim/step_messages.h>
#include <weft/rpc/tensor/tensor_codec.h>

namespace weft::dist_optim {

WEFT_CODEC(ParameterGroup, prefix, options)
WEFT_CODEC(OptimizerSpec, name, options, groups)
WEFT_CODEC(StepMode, kind, count)
WEFT_CODEC(OptimizerState, optimizer, learning_rates, tensors)
WEFT_CODEC(HostStats, version, staleness, open_passes, waiting_passes, live_versions, copied_bytes,
           version_loads)

struct WEFT_EXPORT OptimizerService {
  void attach(rpc::CallContext& call, OptimizerSpec spec, StepMode mode);
  void detach(rpc::CallContext& call);

  // objects: how many the step has, this one counted, all with this owner.
  rpc::Future<StepOutcome> step(rpc::CallContext& call, StepRequest request, std::uint64_t objects);
  rpc::Future<StepPart> prepare(rpc::CallContext& call, StepRequest request);
  // The version of the parameters after the step; in a synchronous round it comes when the round is closed.
  rpc::Future<std::uint64_t> commit(rpc::CallContext& call, std::uint64_t number, StepDecision decision);
  // Of a step of either kind; harmless where it is over.
  void abort(rpc::CallContext& call, std::uint64_t number);

  void set_learning_rate(rpc::CallContext& call, double rate, std::optional<std::string> group);
  OptimizerState save_state(rpc::CallContext& call);
  void load_state(rpc::CallContext& call, OptimizerState state);
  HostStats stats(rpc::CallContext& call);

  using Service = rpc::Service<
      "weft.optim", rpc::Method<"attach", &OptimizerService::attach>,
      rpc::Method<"detach", &OptimizerService::detach>, rpc::Method<"step", &OptimizerService::step>,
      rpc::Method<"prepare", &OptimizerService::prepare>, rpc::Method<"commit", &OptimizerService::commit>,
      rpc::Method<"abort", &OptimizerService::abort>,
      rpc::Method<"set_learning_rate", &OptimizerService::set_learning_rate>,
      rpc::Method<"save_state", &OptimizerService::save_state>,
      rpc::Method<"load_state", &OptimizerService::load_state>,
      rpc::Method<"stats", &OptimizerService::stats>>;

  Context* context = nullptr;  // which the agent keeps as long as its methods
};

}  // namespace weft::dist_optim
