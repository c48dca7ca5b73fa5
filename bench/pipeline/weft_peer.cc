// weft's executors. The driver of `Pipeline` is on the agent of rank 0.
#include "bench/collectives/ranks.h"
#include "bench/harness/statistics.h"
#include "bench/pipeline/model.h"
#include "bench/pipeline/work.h"

#include <weft/dist_autograd/pass.h>
#include <weft/parallel/pipeline/group_pipeline.h>
#include <weft/parallel/pipeline/local_pipeline.h>
#include <weft/parallel/pipeline/remote/pipeline.h>
#include <weft/parallel/schedule/generators.h>
#include <weft/parallel/schedule/measured_costs.h>

namespace weft::bench {
namespace {

using collectives::Group;

const pipeline::Loss squares = pipeline::loss_of(
    [](const at::Tensor& output, const at::Tensor& target) { return torch::mse_loss(output, target); });

schedule::Schedule schedule_of(const Work& work) {
  return schedule::generate(work.schedule, {.ranks = work.ranks, .microbatches = work.microbatches});
}

std::size_t as_told(std::size_t next) { return next; }

void zero_grad(const pipeline::StageGraph& graph) {
  for (at::Tensor& parameter : graph.parameters()) parameter.mutable_grad().reset();
}

// ideal_us: the simulator's prediction for the measured costs of the stages in these steps. overhead_us: the
// difference between the duration of a step and that prediction, per action of a rank. replayed_us: the
// median duration of the steps if messages and waits took no time.
void report(const Work& work, RankEnd& end, Figures figures, const schedule::Schedule& schedule = {},
            const std::vector<schedule::Timeline>& steps = {}) {
  const double median = figures.at("p50_us");
  figures["steps_per_s"] = 1e6 / median;
  if (!steps.empty()) {
    const double ideal = schedule::predict(schedule, schedule::measured_costs(schedule, steps)).time * 1e6;
    figures["ideal_us"] = ideal;
    if (work.model == Model::scale)
      figures["overhead_us"] = (median - ideal) / static_cast<double>(schedule.ranks.front().size());
    std::vector<double> replayed;
    for (const schedule::Timeline& step : steps) replayed.push_back(schedule::replayed_time(schedule, step));
    figures["replayed_us"] = bench::median(std::move(replayed)) * 1e6;
  }
  end.report(figures);
}

void run_locally(const Work& work, RankEnd& end) {
  const auto graph = pipeline::cut(layers_of(work), {.cuts = cuts_of(work, work.ranks), .seed = 1});
  pipeline::LocalPipeline model(graph, schedule_of(work), {.loss = squares});
  const Data data = data_of(work);
  std::vector<schedule::Timeline> steps;
  Rounds rounds(end);
  rounds.run(
      [&] {
        zero_grad(graph);
        steps.push_back(model.step({data.input}, {data.target}).timeline);
      },
      as_told);
  report(work, end, rounds.figures(), model.schedule(), steps);
}

void run_by_group(const Work& work, const Group& group, RankEnd& end) {
  const auto schedule = schedule_of(work);
  const auto graph = pipeline::cut(layers_of(work), {.cuts = cuts_of(work, schedule.stages()),
                                                     .built = pipeline::stages_of(schedule, end.rank()),
                                                     .seed = 1});
  pipeline::GroupPipeline model(group, graph, schedule, {.loss = squares});
  const Data data = data_of(work);
  std::vector<schedule::Timeline> steps;
  Rounds rounds(end);
  rounds.run(
      [&] {
        zero_grad(graph);
        auto timeline = model.step({data.input}, {data.target}).timeline;
        if (end.rank() == 0) steps.push_back(std::move(timeline));
      },
      tell_all(group));
  if (end.rank() == 0) report(work, end, rounds.figures(), model.schedule(), steps);
}

void drive_pipeline(const Work& work, rpc::Agent& agent, RankEnd& end) {
  const auto schedule = schedule_of(work);
  std::vector<rpc::Peer> workers;
  for (int rank = 0; rank < work.ranks; ++rank) workers.push_back(agent.peer("rank" + std::to_string(rank)));
  auto model =
      pipeline::Pipeline::create(agent, workers,
                                 {.cuts = cuts_of(work, schedule.stages()), .schedule = schedule, .seed = 1})
          .get();
  const Data data = data_of(work);
  std::vector<schedule::Timeline> steps;
  Rounds rounds(end);
  rounds.run([&] { steps.push_back(model.step(data.input, data.target).get().timeline); }, as_told);
  report(work, end, rounds.figures(), model.schedule(), steps);
}

// A stage of the tutorial's model, which the driver calls.
struct ServedStage : torch::nn::Module {
  explicit ServedStage(std::int64_t number) {
    const Work work{.model = Model::resnet50};
    const auto graph = pipeline::cut(
        layers_of(work), {.cuts = cuts_of(work, 2), .built = std::set{static_cast<int>(number)}, .seed = 1});
    stage = graph[static_cast<int>(number)];
    register_module("layers", stage.module);
  }
  at::Tensor forward(at::Tensor input) { return stage.forward({input}).front(); }
  at::Tensor loss(at::Tensor input, at::Tensor target) { return torch::mse_loss(forward(input), target); }
  pipeline::Stage stage;
  using Service =
      rpc::Service<"served_stage", rpc::Constructor<std::int64_t>,
                   rpc::Method<"forward", &ServedStage::forward>, rpc::Method<"loss", &ServedStage::loss>>;
};

// The same program as examples/rref_pipeline.
void drive_calls(const Work& work, rpc::Agent& agent, RankEnd& end) {
  auto front = rref::create<ServedStage>(agent.peer("rank1"), 0);
  auto back = rref::create<ServedStage>(agent.peer("rank2"), 1);
  const auto share = at::scalar_tensor(1.0 / work.microbatches);
  const Data data = data_of(work);
  const auto inputs = data.input.split(work.rows), targets = data.target.split(work.rows);
  Rounds rounds(end);
  rounds.run(
      [&] {
        std::vector<dist_autograd::Pass> passes;
        std::vector<rpc::Future<void>> done;
        for (std::size_t i = 0; i < inputs.size(); ++i) {
          auto& pass = passes.emplace_back(agent);
          auto hidden = front.remote<&ServedStage::forward>(pass, inputs[i]);
          auto loss = back.remote<&ServedStage::loss>(pass, hidden, targets[i]);
          done.push_back(pass.backward(loss, share));
        }
        rpc::when_all(std::move(done)).get();
      },
      as_told);
  report(work, end, rounds.figures());
}

enum class Way { group, pipeline, calls };

void run(const Work& work, Way way, int ranks, const std::string& store, RankEnd& end) {
  at::set_num_threads(1);
  rpc::MemberOptions options = member_options(end, store, ranks);
  rpc::Job job(options, group_layers(pipeline::layers({[&] { return layers_of(work); }, squares})));
  rpc::Agent& agent = job.agent();
  if (way == Way::calls) agent.allow_create<ServedStage>();
  job.join().get();
  const Group group = Group::create(agent).get();
  if (way == Way::group) run_by_group(work, group, end);
  if (way == Way::pipeline && end.rank() == 0) drive_pipeline(work, agent, end);
  if (way == Way::calls && end.rank() == 0) drive_calls(work, agent, end);
  group.barrier().get();  // the workers serve until the barrier
  agent.leave().get();
}

Contender contender(const char* name, const Work& work, Way way) {
  return Contender{name, {{"caller", "main"}}, [work, way](const Setting& setting) {
                     const int ranks = work.ranks + (way == Way::calls ? 1 : 0);
                     return measure_members(ranks, setting, [&](const std::string& store, RankEnd& end) {
                       run(work, way, ranks, store, end);
                     });
                   }};
}

}  // namespace

std::optional<Contender> weft_peer(const Work& work) { return contender("weft", work, Way::group); }
std::optional<Contender> weft_rpc_peer(const Work& work) {
  return contender("weft-rpc", work, Way::pipeline);
}
std::optional<Contender> weft_calls_peer(const Work& work) {
  if (work.model != Model::resnet50) return std::nullopt;
  return contender("weft-calls", work, Way::calls);
}

std::optional<Contender> weft_local_peer(const Work& work) {
  if (work.model != Model::scale) return std::nullopt;
  return Contender{"weft-local", {{"caller", "main"}, {"cores", "any"}}, [work](const Setting& setting) {
                     // All threads of a LocalPipeline are in one process.
                     const Setting any_core{setting.budget, {}};
                     return measure_ranks(1, any_core, [&](RankEnd& end) { run_locally(work, end); });
                   }};
}

}  // namespace weft::bench
