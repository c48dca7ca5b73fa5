#include <weft/parallel/pipeline/internal/sharded_stages.h>

#include <weft/parallel/sharded/internal/name_patterns.h>
#include <weft/parallel/training/broadcast_state.h>
#include <weft/rpc/codec/struct_codec.h>
#include <weft/rpc/core/error.h>

#include <map>
#include <utility>
#include <vector>

namespace weft::pipeline {

using rpc::Error;
using rpc::ErrorKind;
using sharded::UnitParameters;

namespace {

constexpr auto sharded_owner = "GroupPipeline";

// The names and the error that a rank sends to the other ranks of its pipeline.
struct ShardedNames {
  std::string refusal = {};
  std::vector<std::string> trained = {}, frozen = {};
};
WEFT_CODEC(ShardedNames, refusal, trained, frozen)

std::vector<UnitParameters> units_of_stages(const StageGraph& graph, const std::set<int>& stages,
                                            const weights::InitialValues* values) {
  torch::nn::Module all;  // so that they are compared with each other, too
  std::vector<std::string> blocks;
  for (const int stage : stages) {
    blocks.push_back(std::to_string(stage));
    all.register_module(blocks.back(), graph[stage].module);
  }
  std::vector<UnitParameters> units(stages.size() + 1);
  if (!all.parameters().empty())
    units =
        sharded::units_of(sharded_owner, all, blocks, torch::OrderedDict<std::string, at::Tensor>(), values);
  if (!units.front().parameters.empty())
    throw Error(ErrorKind::invalid_argument, std::string(sharded_owner) +
                                                 ": two stages share the parameter " +
                                                 units.front().parameters.front().name +
                                                 ", expected sharded stages without common parameters");
  units.erase(units.begin());
  for (std::size_t i = 0; i < units.size(); ++i) {
    units[i].name = "stage " + blocks[i];
    for (auto& parameter : units[i].parameters) parameter.name.erase(0, blocks[i].size() + 1);
  }
  return units;
}

// The parameters that require grad on other ranks of the pipeline.
std::vector<std::string> compare_names(const collectives::Group& pipeline,
                                       rpc::Result<std::vector<UnitParameters>>& units) {
  ShardedNames own;
  try {
    if (!units.ok()) std::rethrow_exception(units.error());
    for (const UnitParameters& unit : units.value())
      for (const auto& [name, tensor, sparse] : unit.parameters)
        (tensor.requires_grad() ? own.trained : own.frozen).push_back(name);
  } catch (const std::exception& error) {
    own.refusal = error.what();
  }
  const auto all = pipeline.all_gather_object(own).get();
  if (!units.ok()) std::rethrow_exception(units.error());
  std::vector<std::string> elsewhere;
  std::map<std::string, std::size_t> rank_of;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].refusal.empty())
      throw Error(ErrorKind::failed_precondition, "rank " + std::to_string(rank) + ": " + all[rank].refusal);
    for (const auto* names : {&all[rank].trained, &all[rank].frozen})
      for (const std::string& name : *names)
        if (const auto [first, is_new] = rank_of.emplace(name, rank); !is_new)
          throw Error(ErrorKind::invalid_argument, std::string(sharded_owner) + ": stages of rank " +
                                                       std::to_string(first->second) + " and of rank " +
                                                       std::to_string(rank) + " have a parameter " + name +
                                                       ", expected different names for checkpoints");
    if (static_cast<int>(rank) != pipeline.rank())
      elsewhere.insert(elsewhere.end(), all[rank].trained.begin(), all[rank].trained.end());
  }
  return elsewhere;
}

}  // namespace

sharded::ShardGroups groups_of_stages(const collectives::Group& counterparts,
                                      std::chrono::nanoseconds timeout) {
  collectives::GroupOptions options = counterparts.options();
  options.timeout = timeout;
  return {.gathers = sharded::own_group_for(counterparts, "gathers", options),
          .reductions = sharded::own_group_for(counterparts, "reductions", options)};
}

std::unique_ptr<sharded::ShardedUnits> shard_stages(const StageGraph& graph, const std::set<int>& stages,
                                                    const StageShards& how) {
  sharded::ShardSetup setup{.owner = sharded_owner,
                            .groups = groups_of_stages(how.counterparts, how.timeout),
                            .options = how.options};
  auto units = rpc::capture([&] {
    return sharded::expect_equal_units(setup.groups.gathers, sharded_owner, rpc::capture([&] {
                                         return units_of_stages(graph, stages, how.options.values.get());
                                       }),
                                       how.signature + sharded::to_text(how.options.precision_of));
  });
  setup.names_elsewhere = compare_names(how.pipeline, units);
  std::vector<at::Tensor> buffers;
  for (const int stage : stages)
    for (const at::Tensor& buffer : graph[stage].module->buffers()) buffers.push_back(buffer);
  sharded::materialize_whole(setup, buffers);
  for (const int stage : stages) {
    torch::OrderedDict<std::string, at::Tensor> tensors = graph[stage].module->named_parameters();
    tensors.update(graph[stage].module->named_buffers());
    training::broadcast_parameters(setup.groups.gathers, sharded::with_memory(tensors), 0);
  }
  return std::make_unique<sharded::ShardedUnits>(std::move(setup), units.value());
}

}  // namespace weft::pipeline
