// LbfgsService: the requests of a DistLBFGS to the owners of its parameters. Every call concerns an object
// behind an RRef and runs in the object's turn. number: the number of the DistLBFGS on the calling agent.
#pragma once

#include <weft/dist_autograd/ids.h>
#include <weft/dist_optim/lbfgs/internal/vectors.h>
#include <weft/dist_optim/service/internal/optimizer_layer.h>
#include <weft/rpc/codec/struct_codec.h>

#include <vector>

namespace weft::dist_optim {

WEFT_CODEC(LbfgsProducts, s_y, y_s, y_y, s_g, y_g, g_g)
WEFT_CODEC(LbfgsDirection, joins, scale, y_weights, s_weights)
WEFT_CODEC(LbfgsMeasures, largest, sum, slope, products)

// An evaluation of the loss at the present parameters.
struct LbfgsEvaluation {
  std::vector<dist_autograd::PassId> passes;  // their gradients add up
  std::uint64_t point = 1;
  std::vector<std::uint64_t> keep;  // the earlier points whose gradients are kept
  bool settle = false;              // the step continues from this point
};
WEFT_CODEC(LbfgsEvaluation, passes, point, keep, settle)

struct WEFT_EXPORT LbfgsService {
  // attach() reserves the object's parameters for a DistLBFGS; detach() releases them. Errors: those of
  // LbfgsOwner.
  void attach(rpc::CallContext& call, std::uint64_t number, std::uint64_t history_size);
  void detach(rpc::CallContext& call, std::uint64_t number);

  // Takes the passes' gradients; the passes then end on this owner. The result has products if
  // evaluation.settle.
  LbfgsMeasures take(rpc::CallContext& call, std::uint64_t number, LbfgsEvaluation evaluation);
  double direct(rpc::CallContext& call, std::uint64_t number, LbfgsDirection direction, double t, bool stay);
  void move(rpc::CallContext& call, std::uint64_t number, double t);
  LbfgsMeasures settle(rpc::CallContext& call, std::uint64_t number, double t, std::uint64_t point);

  // Ends the step; restore() first returns to the parameters at its beginning.
  void end_step(rpc::CallContext& call, std::uint64_t number);
  void restore(rpc::CallContext& call, std::uint64_t number);

  using Service =
      rpc::Service<"weft.lbfgs", rpc::Method<"attach", &LbfgsService::attach>,
                   rpc::Method<"detach", &LbfgsService::detach>, rpc::Method<"take", &LbfgsService::take>,
                   rpc::Method<"direct", &LbfgsService::direct>, rpc::Method<"move", &LbfgsService::move>,
                   rpc::Method<"settle", &LbfgsService::settle>,
                   rpc::Method<"end_step", &LbfgsService::end_step>,
                   rpc::Method<"restore", &LbfgsService::restore>>;

  OptimizerLayer* layer = nullptr;  // the agent keeps the layer as long as it serves these methods
};

// For an agent that has an OptimizerLayer. Part of dist_optim::layers().
WEFT_EXPORT void install_lbfgs(rpc::Agent& agent);

}  // namespace weft::dist_optim
