#include <weft/dist_optim/lbfgs/internal/service.h>

#include <weft/dist_optim/lbfgs/internal/owner.h>
#include <weft/rpc/endpoint/agent_core.h>

namespace weft::dist_optim {
namespace {

LbfgsOwner::Holder holder_of(rpc::CallContext& call, std::uint64_t number) {
  return {trainer_of(call.peer().id), number, call.peer().id.name};
}

// Frees the objects of a DistLBFGS whose agent is gone.
class Deaths final : public rpc::CallHook {
 public:
  explicit Deaths(std::shared_ptr<OptimizerLayer> layer) : layer_(std::move(layer)) {}
  bool knows(std::string_view) const override { return false; }
  void peer_gone(const rpc::AgentId& peer, const rpc::Error&) override {
    // This runs on a loop, and the parameters are changed.
    layer_->core()->handlers().post([guards = layer_->guards(), trainer = trainer_of(peer)] {
      for (const auto& guard : guards)
        if (auto* lbfgs = guard->find_part<LbfgsOwner>()) lbfgs->trainer_gone(trainer);
    });
  }

 private:
  const std::shared_ptr<OptimizerLayer> layer_;
};

// Runs use(vectors) with the vectors of the call's object.
template <class Use>
auto with_vectors(OptimizerLayer& layer, rpc::CallContext& call, std::uint64_t number, Use use) {
  return layer.guard_of(call)->part<LbfgsOwner>().with(holder_of(call, number), std::move(use));
}

}  // namespace

void LbfgsService::attach(rpc::CallContext& call, std::uint64_t number, std::uint64_t history_size) {
  layer->guard_of(call)->part<LbfgsOwner>().attach(holder_of(call, number), history_size);
}

void LbfgsService::detach(rpc::CallContext& call, std::uint64_t number) {
  layer->guard_of(call)->part<LbfgsOwner>().detach(holder_of(call, number));
}

LbfgsMeasures LbfgsService::take(rpc::CallContext& call, std::uint64_t number, LbfgsEvaluation evaluation) {
  const auto guard = layer->guard_of(call);
  Gradients sum;
  for (const auto& id : evaluation.passes) add_gradients(sum, layer->part_of(id, guard->owned()).gradients);
  // The passes no longer need their version of the parameters: these can be changed in place.
  for (const auto& id : evaluation.passes) guard->owned().release(key_of(id));
  return guard->part<LbfgsOwner>().with(holder_of(call, number), [&](LbfgsVectors& vectors) {
    const LbfgsMeasures measures = vectors.take(evaluation.point, sum, evaluation.keep);
    return evaluation.settle ? vectors.settle(evaluation.point) : measures;
  });
}

double LbfgsService::direct(rpc::CallContext& call, std::uint64_t number, LbfgsDirection direction, double t,
                            bool stay) {
  return with_vectors(*layer, call, number,
                      [&](LbfgsVectors& vectors) { return vectors.direct(direction, t, stay); });
}

void LbfgsService::move(rpc::CallContext& call, std::uint64_t number, double t) {
  with_vectors(*layer, call, number, [&](LbfgsVectors& vectors) { vectors.move_to(t); });
}

LbfgsMeasures LbfgsService::settle(rpc::CallContext& call, std::uint64_t number, double t,
                                   std::uint64_t point) {
  return with_vectors(*layer, call, number, [&](LbfgsVectors& vectors) {
    vectors.move_to(t);
    return vectors.settle(point);
  });
}

void LbfgsService::end_step(rpc::CallContext& call, std::uint64_t number) {
  with_vectors(*layer, call, number, [](LbfgsVectors& vectors) { vectors.end_step(); });
}

void LbfgsService::restore(rpc::CallContext& call, std::uint64_t number) {
  with_vectors(*layer, call, number, [](LbfgsVectors& vectors) { vectors.restore(); });
}

void install_lbfgs(rpc::Agent& agent) {
  auto layer = OptimizerLayer::of(*agent.core());
  auto service = std::make_shared<LbfgsService>();
  service->layer = layer.get();
  agent.serve(service);
  agent.core()->hooks().add(std::make_shared<Deaths>(std::move(layer)));
}

}  // namespace weft::dist_optim
