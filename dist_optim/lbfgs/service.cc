#include <weft/dist_optim/lbfgs/service.h>

namespace weft::dist_optim {
namespace {

LbfgsHost::Holder holder_of(rpc::CallContext& call, std::uint64_t number) {
  return {trainer_of(call.peer().id.incarnation), number, call.peer().id.name};
}

// Runs use(vectors) on those of the object that the call is about.
template <class Use>
auto with_vectors(OptimizerLayer& layer, rpc::CallContext& call, std::uint64_t number, Use use) {
  return layer.host_of(call)->lbfgs().with(holder_of(call, number), std::move(use));
}

}  // namespace

void LbfgsService::attach(rpc::CallContext& call, std::uint64_t number, std::uint64_t history_size) {
  layer->host_of(call)->lbfgs().attach(holder_of(call, number), history_size);
}

void LbfgsService::detach(rpc::CallContext& call, std::uint64_t number) {
  layer->host_of(call)->lbfgs().detach(holder_of(call, number));
}

LbfgsMeasures LbfgsService::take(rpc::CallContext& call, std::uint64_t number, LbfgsEvaluation evaluation) {
  const auto guard = layer->host_of(call);
  Gradients sum;
  for (const auto& id : evaluation.passes) add_gradients(sum, layer->part_of(id, guard->host()).gradients);
  // The passes need their version of the parameters no longer: these can be changed in place.
  for (const auto& id : evaluation.passes) guard->host().release(key_of(id));
  return guard->lbfgs().with(holder_of(call, number), [&](LbfgsVectors& vectors) {
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

}  // namespace weft::dist_optim
