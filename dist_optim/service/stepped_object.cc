#include <weft/dist_optim/service/stepped_object.h>

namespace weft::dist_optim {

OptimizerSpec own_optimizer() {
  OptimizerSpec spec;
  spec.name = "rows";
  return spec;
}

OwnedParameters::MakeTarget target_maker(std::shared_ptr<SteppedObject> object) {
  return [object = std::move(object)](const OptimizerSpec& spec) {
    if (!(spec == own_optimizer()))
      throw rpc::Error(rpc::ErrorKind::invalid_argument,
                       "a shard's rows are stepped by their embedding's optimizer, not by " +
                           to_string(spec) + ": give the DistributedOptimizer the ShardedEmbedding");
    return object->make_step_target(object);
  };
}

}  // namespace weft::dist_optim
