// weft's GroupPipeline, and its Pipeline, whose driver is on the agent of rank 0.
#include "bench/pipeline/model.h"
#include "bench/pipeline/work.h"

#include <weft/parallel/collectives/collectives_layer.h>
#include <weft/parallel/pipeline/group_pipeline.h>
#include <weft/parallel/pipeline/pipeline.h>
#include <weft/parallel/schedule/generators.h>
#include <weft/parallel/schedule/measured_costs.h>
#include <weft/rpc/membership/job.h>

#include <algorithm>
#include <filesystem>

namespace weft::bench {
namespace {

using collectives::Group;

const pipeline::Loss squares = pipeline::loss_of(
    [](const at::Tensor& output, const at::Tensor& target) { return torch::mse_loss(output, target); });

// ideal_us: what the simulator predicts of the costs of the stages in these steps. replayed_us: the median of
// the steps as they would be without messages and waits.
void report(RankEnd& end, Figures figures, const schedule::Schedule& schedule,
            const std::vector<schedule::Timeline>& steps) {
  figures["steps_per_s"] = 1e6 / figures.at("p50_us");
  figures["ideal_us"] = schedule::predict(schedule, schedule::measured_costs(schedule, steps)).time * 1e6;
  std::vector<double> replayed;
  for (const schedule::Timeline& step : steps) replayed.push_back(schedule::replayed_time(schedule, step));
  std::nth_element(replayed.begin(), replayed.begin() + replayed.size() / 2, replayed.end());
  figures["replayed_us"] = replayed[replayed.size() / 2] * 1e6;
  end.report(figures);
}

void run(const Work& work, bool by_calls, const std::string& store, RankEnd& end) {
  at::set_num_threads(1);
  rpc::AgentOptions options{.name = "rank" + std::to_string(end.rank())};
  options.listen = {"tcp://127.0.0.1:0"};
  options.rendezvous = rpc::Rendezvous{.store = "file://" + store,
                                       .rank = static_cast<std::size_t>(end.rank()),
                                       .world_size = static_cast<std::size_t>(work.ranks)};
  rpc::Layers layers = pipeline::layers({[&] { return transformer(work); }, squares});
  layers.push_back(collectives::layer());
  rpc::Agent agent(options, layers);
  rpc::Job(agent).join().get();
  const Group group = Group::create(agent).get();
  const auto schedule =
      schedule::generate(work.schedule, {.ranks = work.ranks, .microbatches = work.microbatches});
  const auto cuts = cuts_of(work, schedule.stages());
  const at::Tensor input = torch::randn({work.rows * work.microbatches, work.tokens, work.width});
  const at::Tensor target = torch::randn_like(input);
  std::vector<schedule::Timeline> steps;
  const auto note = [&](schedule::Timeline timeline) {
    if (end.rank() == 0) steps.push_back(std::move(timeline));
  };
  Rounds rounds(end);
  if (!by_calls) {
    const auto graph = pipeline::cut(
        transformer(work), {.cuts = cuts, .built = pipeline::stages_of(schedule, end.rank()), .seed = 1});
    pipeline::GroupPipeline model(group, graph, schedule, {.loss = squares});
    at::Tensor count = at::zeros({1}, at::kLong);
    rounds.run(
        [&] {
          for (at::Tensor& parameter : graph.parameters()) parameter.mutable_grad().reset();
          note(model.step({input}, {target}).timeline);
        },
        [&](std::size_t next) {
          count.fill_(static_cast<std::int64_t>(next));
          group.broadcast(count, 0).get();
          return static_cast<std::size_t>(count.item<std::int64_t>());
        });
    if (end.rank() == 0) report(end, rounds.figures(), model.schedule(), steps);
  } else if (end.rank() == 0) {
    std::vector<rpc::Peer> workers;
    for (int rank = 0; rank < work.ranks; ++rank)
      workers.push_back(agent.peer("rank" + std::to_string(rank)));
    auto model =
        pipeline::Pipeline::create(agent, workers, {.cuts = cuts, .schedule = schedule, .seed = 1}).get();
    rounds.run([&] { note(model.step(input, target).get().timeline); },
               [](std::size_t next) { return next; });
    report(end, rounds.figures(), model.schedule(), steps);
  }
  if (by_calls) group.barrier().get();  // the workers serve until then
  agent.leave().get();
}

Contender contender(const char* name, const Work& work, bool by_calls) {
  return Contender{name, {{"caller", "main"}}, [work, by_calls](const Setting& setting) {
                     const std::string store = scratch_path(".store");
                     const Outcome outcome = measure_ranks(
                         work.ranks, setting, [&](RankEnd& end) { run(work, by_calls, store, end); });
                     std::filesystem::remove(store);
                     return outcome;
                   }};
}

}  // namespace

std::optional<Contender> weft_peer(const Work& work) { return contender("weft", work, false); }
std::optional<Contender> weft_rpc_peer(const Work& work) { return contender("weft-rpc", work, true); }

}  // namespace weft::bench
