// Trains a ResNet-50 on Fashion-MNIST, split over workers:  pipeline_resnet --schedule zb-h1 --microbatches 8
//
// Without a launcher the program starts a driver and two workers on this machine. Under weft launch,
// torchrun, mpirun or srun the program is one of these processes. The driver has the training loop. It draws
// the last step, as measured and as predicted from the measured costs of the stages.
#include <fmt/format.h>
#include <torch/torch.h>
#include <weft/dist_optim/checkpoint/checkpoint.h>
#include <weft/dist_optim/distributed_optimizer.h>
#include <weft/parallel/pipeline/remote/pipeline.h>
#include <weft/parallel/schedule/draw.h>
#include <weft/parallel/schedule/generators.h>
#include <weft/parallel/schedule/lowering.h>
#include <weft/parallel/schedule/measured_costs.h>
#include <weft/rpc/job/run_job.h>

#include <CLI/CLI.hpp>

#include <filesystem>
#include <fstream>

#include "fashion_mnist/dataset.h"
#include "fashion_mnist/loss_curve.h"
#include "fashion_mnist/progress.h"
#include "pipeline_resnet/resnet.h"

using namespace weft;

namespace {

struct Settings {
  std::string schedule = "1f1b", data, out = "pipeline_resnet_out", checkpoint;
  std::vector<int> cuts;
  int workers = 2, microbatches = 4, threads = 1;
  std::int64_t width = 16, batch_size = 64, images = 60000, test_images = 10000, epochs = 1,
               checkpoint_every = 100;
  std::uint64_t seed = 1;
  double learning_rate = 0.05;
  bool recompute = false;
};

Settings parse(int argc, char** argv) {
  CLI::App app{"Trains a ResNet-50 on Fashion-MNIST, split over workers that one driver calls."};
  Settings s;
  app.add_option("--schedule", s.schedule, "as `weft schedule --type`")->capture_default_str();
  app.add_option("--workers", s.workers, "ranks of the schedule")->capture_default_str();
  app.add_option("--microbatches", s.microbatches, "parts of a batch")->capture_default_str();
  app.add_option("--cuts", s.cuts, "first layers of the stages after the first one; of 18 layers")
      ->delimiter(',');
  app.add_flag("--recompute", s.recompute,
               "keep only the inputs of the stages, and compute the stages again in backward");
  app.add_option("--width", s.width, "channels of the first group of blocks; 64 in the paper")
      ->capture_default_str();
  app.add_option("--batch-size", s.batch_size)->capture_default_str();
  app.add_option("--images", s.images, "of an epoch")->capture_default_str();
  app.add_option("--test-images", s.test_images, "for the accuracy")->capture_default_str();
  app.add_option("--epochs", s.epochs)->capture_default_str();
  app.add_option("--learning-rate", s.learning_rate)->capture_default_str();
  app.add_option("--seed", s.seed)->capture_default_str();
  app.add_option("--threads", s.threads, "of each process")->capture_default_str();
  app.add_option("--data", s.data, "folder of Fashion-MNIST; empty: of Debian's package");
  app.add_option("--out", s.out, "folder for the loss curve and the timeline")->capture_default_str();
  app.add_option("--checkpoint", s.checkpoint,
                 "file that the driver writes; if it exists, the run resumes from it");
  app.add_option("--checkpoint-every", s.checkpoint_every, "steps")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  return s;
}

schedule::Schedule schedule_of(const Settings& settings) {
  auto schedule = schedule::generate(settings.schedule,
                                     {.ranks = settings.workers, .microbatches = settings.microbatches});
  return settings.recompute ? schedule::add_recomputation(schedule, schedule::Recompute::always) : schedule;
}

// Stages with nearly equal numbers of layers.
std::vector<int> even_cuts(int layers, int stages) {
  std::vector<int> cuts;
  for (int stage = 1; stage < stages; ++stage) cuts.push_back(layers * stage / stages);
  return cuts;
}

void draw(const schedule::Schedule& schedule, const schedule::Timeline& measured, const std::string& folder) {
  const auto predicted = schedule::predict(schedule, schedule::measured_costs(schedule, {&measured, 1}));
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/timeline.svg")
      << schedule::svg(schedule, {{"measured: the last step", measured},
                                  {"predicted from the measured costs of the stages", predicted.timeline}});
  double end = 0;
  for (const auto& spans : measured.ranks)
    for (const schedule::Span& span : spans) end = std::max(end, span.finish);
  fmt::print("the last step took {:.3f} s, predicted {:.3f} s; drawn in {}/timeline.svg\n", end,
             predicted.time, folder);
}

// Saves and loads the stages, their optimizers and the progress of the run, in one file.
class Checkpoint {
 public:
  Checkpoint(const Settings& settings, const pipeline::Pipeline& model)
      : path_(settings.checkpoint), every_(settings.checkpoint_every) {
    for (const auto& stage : model.stages()) modules_.emplace_back(stage);
  }
  rpc::Task<void> save_if_due(dist_optim::DistributedOptimizer& optimizer, const Progress::State& state) {
    if (path_.empty() || state.batches % every_ != 0) co_return;
    dist_optim::Notes notes{{"images", std::to_string(state.images)},
                            {"batches", std::to_string(state.batches)},
                            {"loss", std::to_string(state.loss)}};
    co_await dist_optim::save(path_, modules_, optimizer, std::move(notes));
  }
  rpc::Task<Progress::State> load(dist_optim::DistributedOptimizer& optimizer) {
    if (path_.empty() || !std::filesystem::exists(path_)) co_return Progress::State{};
    const dist_optim::Notes notes = co_await dist_optim::load(path_, modules_, optimizer);
    co_return Progress::State{.images = std::stoll(notes.at("images")),
                              .batches = std::stoll(notes.at("batches")),
                              .loss = std::stod(notes.at("loss"))};
  }

 private:
  const std::filesystem::path path_;
  const std::int64_t every_;
  dist_optim::Modules modules_;
};

rpc::Task<double> accuracy(pipeline::Pipeline& model, Dataset test, std::int64_t images) {
  test.truncate(images);
  std::int64_t right = 0;
  co_await model.train(false);
  for (std::int64_t begin = 0; begin < test.size(); begin += 500) {
    const Batch batch = test.batch(begin, begin + 500);
    const at::Tensor outputs = co_await model.evaluate(batch.images);
    right += (outputs.argmax(1) == batch.labels).sum().item<std::int64_t>();
  }
  co_return static_cast<double>(right) / static_cast<double>(test.size());
}

rpc::Task<void> drive(rpc::Agent& agent, const Settings& settings) {
  pipeline::PipelineOptions options{
      .cuts = settings.cuts, .schedule = schedule_of(settings), .seed = settings.seed};
  if (options.cuts.empty()) options.cuts = even_cuts(resnet50(10, 1).size(), options.schedule.stages());
  std::vector<rpc::Peer> workers;
  for (int i = 1; i <= settings.workers; ++i) workers.push_back(agent.peer("worker" + std::to_string(i)));
  pipeline::Pipeline model =
      co_await pipeline::Pipeline::create(agent, std::move(workers), std::move(options));
  dist_optim::DistributedOptimizer optimizer{
      agent, torch::optim::SGDOptions(settings.learning_rate).momentum(0.9).weight_decay(5e-4),
      dist_optim::synchronous, model.modules()};

  Dataset data(settings.data, "train");
  data.truncate(settings.images);
  torch::manual_seed(settings.seed);
  Batches batches(data, settings.batch_size, settings.epochs);
  Progress progress("driver", batches.total_images());
  Checkpoint checkpoint(settings, model);
  const Progress::State begin = co_await checkpoint.load(optimizer);
  progress.go_on(begin);
  batches.skip(begin.batches);
  std::vector<Point> points;
  schedule::Timeline timeline;
  while (const auto batch = batches.next()) {
    pipeline::PipelineStep step = co_await model.step(batch->images, batch->labels);
    co_await optimizer.step(step.pass);
    progress.advance(batch->size(), step.loss.item<double>());
    points.push_back(
        {"driver", progress.state().images, begin.images, progress.seconds(), step.loss.item<double>()});
    co_await checkpoint.save_if_due(optimizer, progress.state());
    if (batch->size() == settings.batch_size) timeline = std::move(step.timeline);
  }
  progress.finish();
  write_loss_curve(
      points,
      fmt::format("ResNet-50 on Fashion-MNIST, {} on {} workers", settings.schedule, settings.workers),
      settings.out);
  if (!timeline.ranks.empty()) draw(model.schedule(), timeline, settings.out);
  fmt::print("test_accuracy={:.4f}\n",
             co_await accuracy(model, Dataset(settings.data, "t10k"), settings.test_images));
}

}  // namespace

int main(int argc, char** argv) {
  const Settings settings = parse(argc, argv);
  at::set_num_threads(settings.threads);
  const pipeline::Model model{[&] { return resnet50(10, settings.width); },
                              pipeline::loss_of([](const at::Tensor& output, const at::Tensor& labels) {
                                return torch::cross_entropy_loss(output, labels);
                              })};
  return rpc::run_job(argc, argv, pipeline::layers(model),
                      [&](rpc::Job& job) {
                        job.join().get();
                        if (job.rank() == 0) job.agent().run(drive(job.agent(), settings));
                      },
                      {.processes = static_cast<std::size_t>(settings.workers) + 1});
}
