#include <weft/parallel/elastic/pipeline/elastic_pipeline.h>

#include <weft/parallel/sharded/training_state.h>
#include <weft/parallel/training/internal/agreement.h>

#include <string>
#include <utility>
#include <vector>

namespace weft::elastic {

using collectives::Group;
using rpc::Error;
using rpc::ErrorKind;

namespace {

const std::string optimizer_prefix = "optimizer/";

std::vector<std::optional<PipelinePlace>> gather_places(const Group& group,
                                                        const std::optional<PipelinePlace>& own) {
  const std::vector<int> told = own ? std::vector<int>{own->pipeline, own->rank} : std::vector<int>();
  std::vector<std::optional<PipelinePlace>> places;
  for (const std::vector<int>& rank : group.all_gather_object(told).get())
    places.push_back(rank.size() == 2 ? std::optional(PipelinePlace{rank[0], rank[1]}) : std::nullopt);
  return places;
}

}  // namespace

struct ElasticPipeline::Impl {
  Impl(const pipeline::LayerGraph& model, pipeline::CutOptions wanted_cut, schedule::Schedule wanted_schedule,
       pipeline::GroupPipelineOptions wanted)
      : layers(model),
        cut(std::move(wanted_cut)),
        schedule(std::move(wanted_schedule)),
        options(std::move(wanted)),
        whole(pipeline::cut(layers, cut)) {}

  void set_group(const Group& group);
  void add_to(sharded::SlicedState& to) const;
  void add_wanted_to(sharded::SlicedState& to, const std::vector<std::string>& names) const;
  void take_from(const sharded::SlicedState& from);
  std::vector<sharded::ParameterSlice> optimized(int stage, const torch::nn::Module& module) const;
  // Calls f(number, module) for each stage of this rank.
  template <class F>
  void for_each_stage(F f) const {
    const pipeline::StageGraph* const graph = trained ? &trained->graph() : whole ? &*whole : nullptr;
    for (int stage = 0; graph != nullptr && stage < graph->size(); ++stage)
      if (graph->is_here(stage)) f(stage, *(*graph)[stage].module);
  }

  const pipeline::LayerGraph layers;
  pipeline::CutOptions cut;
  const schedule::Schedule schedule;
  pipeline::GroupPipelineOptions options;
  std::optional<pipeline::StageGraph> whole;  // until the first generation
  std::unique_ptr<pipeline::GroupPipeline> trained;
  std::optional<PipelinePlace> place;
  int pipelines = 0;
};

void ElasticPipeline::Impl::set_group(const Group& group) {
  const auto ranks = static_cast<int>(schedule.ranks.size());
  const auto places = place_in_pipelines(gather_places(group, place), ranks);
  pipelines = group.size() / ranks;
  if (pipelines == 0)
    training::throw_on_all_ranks(group, {ErrorKind::failed_precondition,
                                         "elastic::ElasticPipeline: " + std::to_string(group.size()) +
                                             " workers, expected at least the " + std::to_string(ranks) +
                                             " of the schedule: set WorkerLimits::min"});
  const auto next = places[static_cast<std::size_t>(group.rank())];
  const auto color = [&](int PipelinePlace::* of) {
    return next ? std::optional((*next).*of) : std::nullopt;
  };
  const auto own = group.split(color(&PipelinePlace::pipeline), next ? next->rank : 0).get(),
             data = group.split(color(&PipelinePlace::rank), next ? next->pipeline : 0).get();
  const bool stays = trained != nullptr && next && place && place->rank == next->rank;
  place = next;
  whole.reset();
  if (!next) return trained.reset();
  if (stays) return trained->set_groups(*own, *data);
  trained.reset();
  options.data_parallel = data;
  if (const auto late_after = group.options().late_after; late_after.count() > 0)
    options.timeout = std::min(options.timeout, late_after);  // so that run() notices a stage that hangs
  cut.built = pipeline::stages_of(schedule, next->rank);
  trained = std::make_unique<pipeline::GroupPipeline>(*own, pipeline::cut(layers, cut), schedule, options);
}

void ElasticPipeline::Impl::add_to(sharded::SlicedState& to) const {
  for_each_stage([&](int stage, const torch::nn::Module& module) {
    sharded::add_module(to, module);
    if (trained)
      sharded::add_optimizer(to, trained->optimizer(stage).state(), sharded::slices_of(module),
                             optimizer_prefix);
  });
}

// The parameters of which the optimizer of this worker can have a state. A worker that gets another stage
// makes a new optimizer, which does not know the frozen parameters.
std::vector<sharded::ParameterSlice> ElasticPipeline::Impl::optimized(int stage,
                                                                      const torch::nn::Module& module) const {
  auto slices = sharded::slices_of(module);
  const auto state = trained ? trained->optimizer(stage).state() : dist_optim::OptimizerState{};
  std::erase_if(slices, [&](const sharded::ParameterSlice& each) {
    if (each.leaf.tensor.requires_grad()) return false;
    const auto first = state.tensors.lower_bound(each.parameter + "/");
    return first == state.tensors.end() || !first->first.starts_with(each.parameter + "/");
  });
  return slices;
}

void ElasticPipeline::Impl::add_wanted_to(sharded::SlicedState& to,
                                          const std::vector<std::string>& names) const {
  for_each_stage([&](int stage, const torch::nn::Module& module) {
    sharded::add_module(to, module);
    sharded::add_wanted_optimizer(to, *options.optimizer, optimized(stage, module), names, optimizer_prefix);
  });
}

// Before the first step there is no optimizer whose state was committed.
void ElasticPipeline::Impl::take_from(const sharded::SlicedState& from) {
  if (!trained || !from.notes.contains(optimizer_prefix + "name")) return;
  for_each_stage([&](int stage, const torch::nn::Module& module) {
    trained->optimizer(stage).set_state(
        sharded::optimizer_in(from, options.optimizer->name, optimized(stage, module), optimizer_prefix));
  });
}

ElasticPipeline::ElasticPipeline(const pipeline::LayerGraph& layers, pipeline::CutOptions cut,
                                 schedule::Schedule schedule, pipeline::GroupPipelineOptions options) {
  const auto refuse = [](const std::string& why) {
    throw Error(ErrorKind::invalid_argument, "elastic::ElasticPipeline: " + why);
  };
  if (!options.optimizer) refuse("GroupPipelineOptions::optimizer is not set, expected an optimizer");
  if (options.data_parallel)
    refuse("GroupPipelineOptions::data_parallel is set, expected none: each generation has its own groups");
  if (options.sharded) refuse("GroupPipelineOptions::sharded is set, expected stages that are not sharded");
  if (cut.built)
    refuse("CutOptions::built is set, expected none: every worker constructs all stages before run()");
  if (schedule.ranks.empty()) refuse("a schedule of 0 ranks, expected at least 1");
  impl_ = std::make_unique<Impl>(layers, std::move(cut), std::move(schedule), std::move(options));
}

ElasticPipeline::~ElasticPipeline() = default;

std::shared_ptr<StatePart> ElasticPipeline::part(ShardedPartOptions options) {
  Impl& impl = *impl_;
  return sharded_part(
      {.set_group = [&](const Group& group) { impl.set_group(group); },
       .add_to = [&](sharded::SlicedState& to) { impl.add_to(to); },
       .add_wanted_to = [&](sharded::SlicedState& to,
                            const std::vector<std::string>& names) { impl.add_wanted_to(to, names); },
       .take_from = [&](const sharded::SlicedState& from) { impl.take_from(from); }},
      options);
}

int ElasticPipeline::pipelines() const { return impl_->pipelines; }
bool ElasticPipeline::has_stages() const { return impl_->trained != nullptr; }

PipelinePlace ElasticPipeline::place() const {
  (void)pipeline();
  return *impl_->place;
}

pipeline::GroupPipeline& ElasticPipeline::pipeline() const {
  if (!has_stages())
    throw Error(ErrorKind::failed_precondition,
                "elastic::ElasticPipeline: this worker has no stages: call has_stages() first");
  return *impl_->trained;
}

}  // namespace weft::elastic
