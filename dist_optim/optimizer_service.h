// OptimizerService: what a DistOptimizer asks of the owners of its parameters. Every call is about an object
// behind an RRef and takes its turn in the object's queue.
#pragma once

#include <weft/dist_optim/context.h>
#include <weft/dist_optim/local/optimizer_spec.h>

namespace weft::dist_optim {

WEFT_CODEC(OptimizerSpec, name, options)
WEFT_CODEC(StepMode, kind, count)

struct WEFT_EXPORT OptimizerService {
  void attach(rpc::CallContext& call, OptimizerSpec spec, StepMode mode);
  void detach(rpc::CallContext& call);
  // One step with exactly these passes' gradients; the version of the parameters after it.
  rpc::Future<std::uint64_t> step(rpc::CallContext& call, std::vector<dist_autograd::PassId> passes);
  void set_learning_rate(rpc::CallContext& call, double rate);

  using Service = rpc::Service<"weft.optim", rpc::Method<"attach", &OptimizerService::attach>,
                               rpc::Method<"detach", &OptimizerService::detach>,
                               rpc::Method<"step", &OptimizerService::step>,
                               rpc::Method<"set_learning_rate", &OptimizerService::set_learning_rate>>;

  Context* context = nullptr;  // which the agent keeps as long as its methods
};

}  // namespace weft::dist_optim
