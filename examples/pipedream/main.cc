// Trains a VGG on Fashion-MNIST as PipeDream does:  pipedream --workers 3
//
// Rank 0 measures the layers. PipeDream's dynamic program cuts them into stages, some with replicas. The
// ranks train without a flush: each batch is a micro-batch, each stage steps after each of its backwards, and
// keeps the versions of its weights that batches in flight need. Without a launcher the program starts all
// workers on this machine. Under weft launch, torchrun, mpirun or srun the program is one of the workers.
#include <fmt/format.h>
#include <torch/torch.h>
#include <weft/parallel/collectives/collectives_layer.h>
#include <weft/parallel/collectives/group.h>
#include <weft/parallel/partition/pipedream.h>
#include <weft/parallel/partition/plan.h>
#include <weft/parallel/partition/profile_text.h>
#include <weft/parallel/pipeline/group_pipeline.h>
#include <weft/parallel/pipeline/profiler.h>
#include <weft/parallel/schedule/draw.h>
#include <weft/parallel/schedule/measured_costs.h>
#include <weft/rpc/job/run_job.h>

#include <CLI/CLI.hpp>

#include <array>
#include <filesystem>
#include <fstream>

#include "fashion_mnist/dataset.h"
#include "fashion_mnist/loss_curve.h"
#include "fashion_mnist/progress.h"
#include "pipedream/vgg.h"

using namespace weft;

namespace {

struct Settings {
  std::string data, out = "pipedream_out";
  int workers = 3, microbatches = 16, threads = 1;
  std::int64_t width = 16, hidden = 512, batch_size = 64, images = 60000, test_images = 10000, epochs = 1;
  std::uint64_t seed = 1;
  double learning_rate = 0.02, bandwidth = 1e9;
  bool straight = false;
};

Settings parse(int argc, char** argv) {
  CLI::App app{"Trains a VGG on Fashion-MNIST with PipeDream's partition, schedule and weight versions."};
  Settings s;
  app.add_option("--workers", s.workers, "processes")->capture_default_str();
  app.add_flag("--straight", s.straight, "stages without replicas");
  app.add_option("--bandwidth", s.bandwidth, "between workers, in bytes per second")->capture_default_str();
  app.add_option("--microbatches", s.microbatches,
                 "micro-batches per step, after which the pipeline runs empty")
      ->capture_default_str();
  app.add_option("--width", s.width, "channels of the first convolution")->capture_default_str();
  app.add_option("--hidden", s.hidden, "features of the linear layers")->capture_default_str();
  app.add_option("--batch-size", s.batch_size)->capture_default_str();
  app.add_option("--images", s.images, "of an epoch")->capture_default_str();
  app.add_option("--test-images", s.test_images, "for the accuracy")->capture_default_str();
  app.add_option("--epochs", s.epochs)->capture_default_str();
  app.add_option("--learning-rate", s.learning_rate)->capture_default_str();
  app.add_option("--seed", s.seed)->capture_default_str();
  app.add_option("--threads", s.threads, "of each process")->capture_default_str();
  app.add_option("--data", s.data, "folder of Fashion-MNIST; empty: of Debian's package");
  app.add_option("--out", s.out, "folder for the profile, the loss curve and the timeline")
      ->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  return s;
}

// Rank 0 measures the profile and broadcasts it, so that all ranks compute the same partition.
partition::Profile measured_profile(const collectives::Group& group, const pipeline::LayerGraph& layers,
                                    const Settings& settings) {
  std::string text;
  if (group.rank() == 0) {
    text = partition::to_text(pipeline::profile(layers, {torch::randn({settings.batch_size, 1, 28, 28})}));
    std::filesystem::create_directories(settings.out);
    std::ofstream(settings.out + "/graph.txt") << text;
  }
  return partition::parse_profile(group.broadcast_object(text, 0).get());
}

partition::Partition partition_of(const partition::Profile& profile, const Settings& settings) {
  const std::array workers{partition::Level{static_cast<std::size_t>(settings.workers), settings.bandwidth}};
  return partition::pipedream(profile, workers,
                              {.straight = settings.straight, .cuts = partition::Cuts::in_order});
}

void print(const partition::Profile& profile, const partition::Partition& partition) {
  for (std::size_t stage = 0; stage < partition.stages.size(); ++stage) {
    const auto& [layers, replicas, ranks, forward, backward, activations, parameters, sent] =
        partition.stages[stage];
    fmt::print("stage {}: {} to {}, {} of {} workers, {:.1f} ms a batch, {:.1f} MB of parameters\n", stage,
               profile.layers[layers.front()].name, profile.layers[layers.back()].name, ranks.size(),
               partition.workers(), 1e3 * (forward + backward), 1e-6 * parameters);
  }
  fmt::print("predicted: {:.2f} times as fast as one worker\n", partition.speed_up());
}

void draw(const schedule::Schedule& schedule, const schedule::Timeline& measured, const std::string& folder) {
  const auto predicted = schedule::predict(schedule, schedule::measured_costs(schedule, {&measured, 1}));
  std::ofstream(folder + "/timeline.svg")
      << schedule::svg(schedule, {{"measured: the last batches", measured},
                                  {"predicted from the measured costs of the stages", predicted.timeline}});
  fmt::print("drawn in {}/timeline.svg\n", folder);
}

// All ranks call it.
double accuracy(pipeline::GroupPipeline& model, const collectives::Group& group, const Settings& settings) {
  Dataset test(settings.data, "t10k");
  test.truncate(settings.test_images);
  std::int64_t right = 0;
  model.graph().train(false);
  for (std::int64_t begin = 0; begin < test.size(); begin += 1000) {
    const Batch batch = test.batch(begin, begin + 1000);
    const auto outputs = model.evaluate({batch.images});
    if (!outputs.empty()) right += (outputs[0].argmax(1) == batch.labels).sum().item<std::int64_t>();
  }
  const int last = model.schedule().rank_of(model.graph().size() - 1, 0);
  return static_cast<double>(group.broadcast_object(right, last).get()) / static_cast<double>(test.size());
}

void train(rpc::Agent& agent, const Settings& settings) {
  const auto group = collectives::Group::create(agent).get();
  const pipeline::LayerGraph layers = vgg(settings.width, settings.hidden);
  const partition::Profile profile = measured_profile(group, layers, settings);
  const partition::Partition partition = partition_of(profile, settings);
  const auto schedule = partition::schedule_of(profile, partition, settings.microbatches);
  const auto graph = pipeline::cut(layers, {.cuts = pipeline::cuts_of(profile, partition),
                                            .built = pipeline::stages_of(schedule, group.rank()),
                                            .seed = settings.seed});
  pipeline::GroupPipeline model(
      group, graph, schedule,
      {.loss = pipeline::loss_of([](const at::Tensor& output, const at::Tensor& labels) {
         return torch::cross_entropy_loss(output, labels);
       }),
       .optimizer = torch::optim::SGDOptions(settings.learning_rate).momentum(0.9).weight_decay(5e-4)});
  const bool reports = group.rank() == 0;
  if (reports) print(profile, partition);

  Dataset data(settings.data, "train");
  data.truncate(settings.images);
  torch::manual_seed(settings.seed);  // all ranks read the same batches
  Batches batches(data, settings.batch_size * settings.microbatches, settings.epochs);
  Progress progress("rank 0", batches.total_images());
  std::vector<Point> points;
  schedule::Timeline timeline;
  while (const auto batch = batches.next()) {
    pipeline::GroupStep step = model.step({batch->images}, {batch->labels});
    if (!reports) continue;
    progress.advance(batch->size(), step.loss.item<double>());
    points.push_back({"rank 0", progress.state().images, 0, progress.seconds(), step.loss.item<double>()});
    timeline = std::move(step.timeline);
  }
  const double right = accuracy(model, group, settings);
  if (!reports) return;
  progress.finish();
  write_loss_curve(points, fmt::format("VGG on Fashion-MNIST, PipeDream on {} workers", settings.workers),
                   settings.out);
  draw(model.schedule(), timeline, settings.out);
  fmt::print("test_accuracy={:.4f}\n", right);
}

}  // namespace

int main(int argc, char** argv) {
  const Settings settings = parse(argc, argv);
  at::set_num_threads(settings.threads);
  return rpc::run_job(argc, argv, {collectives::layer()}, [&](rpc::Agent& agent) { train(agent, settings); },
                      {.processes = static_cast<std::size_t>(settings.workers)});
}
