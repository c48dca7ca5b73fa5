// Trains a GPT on the bytes of a text, over a mesh of ranks:  gpt -n 8 --data 2 --pipeline 2 --tensor 2
//
// The ranks of the dimension `data` have different rows of each batch and split the training state. The ranks
// of `pipeline` have different blocks of the model. The ranks of `tensor` have parts of each block. The
// losses are the same for every mesh, and a run can resume on another mesh. At the end the program writes
// some text, and compares the model with a 5-gram model of the same text.
#include <fmt/format.h>
#include <torch/torch.h>
#include <weft/parallel/collectives/collectives_layer.h>
#include <weft/parallel/collectives/device_mesh.h>
#include <weft/parallel/pipeline/group_pipeline.h>
#include <weft/parallel/schedule/generators.h>
#include <weft/parallel/sharded/fully_sharded_optimizer.h>
#include <weft/parallel/tensor_parallel/gradients.h>
#include <weft/rpc/job/run_job.h>

#include <utility>

#include "fashion_mnist/learning_rate.h"
#include "fashion_mnist/loss_curve.h"
#include "fashion_mnist/progress.h"
#include "gpt/checkpoint.h"
#include "gpt/model.h"
#include "gpt/ngram.h"
#include "gpt/report.h"
#include "gpt/settings.h"
#include "gpt/text.h"

using namespace weft;

namespace {

void train(rpc::Agent& agent, const Settings& wanted) {
  const auto world = collectives::Group::create(agent).get();
  const Settings settings = fitted(wanted, world.size());
  const auto mesh = collectives::DeviceMesh::create(world, dimensions_of(settings)).get();
  const collectives::Group &data = mesh.group("data"), &stages = mesh.group("pipeline"),
                           &tensor = mesh.group("tensor");

  const auto schedule = schedule_of(settings);
  const auto layers = gpt(tensor, settings.model);
  const auto graph = pipeline::cut(layers, {.cuts = gpt_cuts(layers, settings.cut, schedule.stages()),
                                            .built = pipeline::stages_of(schedule, stages.rank()),
                                            .seed = settings.seed});
  if (!settings.profile.empty()) return write_profile(layers, settings);
  pipeline::GroupPipeline model{
      stages,
      graph,
      schedule,
      {.loss = gpt_loss(tensor), .data_parallel = data, .sharded = sharded::ShardOptions{}}};
  sharded::FullyShardedOptimizer optimizer(model.sharded(),
                                           torch::optim::AdamWOptions(settings.learning_rate));
  Checkpoint checkpoint(world, settings.checkpoint, model, optimizer);
  const Progress::State begin = checkpoint.load();

  const Text text(settings.text, settings.model.context);
  const std::int64_t bytes = settings.batch_size * settings.model.context;  // the size of a batch
  Progress progress(agent.name(), settings.steps * bytes, "bytes");
  progress.go_on(begin);
  if (begin.batches > 0 && world.rank() == 0) fmt::print("resumes after step {}\n", begin.batches);
  std::vector<Point> points;
  schedule::Timeline timeline;
  for (std::int64_t step = begin.batches; step < settings.steps; ++step) {
    const std::uint64_t seed = settings.seed + static_cast<std::uint64_t>(step);
    const Batch batch = text.batch(seed, settings.batch_size).part(data.rank(), data.size());
    optimizer.zero_grad();
    pipeline::GroupStep done = model.step({batch.bytes}, {batch.following});
    tensor_parallel::clip_grad_norm(model.sharded().placements(), {{data, true}, {stages, true}, {tensor}},
                                    1.0);
    optimizer.set_learning_rate(cosine_rate(step, settings.steps, settings.learning_rate));
    optimizer.step();

    const at::Tensor loss = done.loss.to(at::kDouble);
    data.all_reduce(loss, collectives::ReduceOp::avg).get();
    timeline = std::move(done.timeline);
    if (world.rank() == 0) {
      progress.advance(bytes, loss.item<double>());
      points.push_back(
          {agent.name(), progress.state().images, begin.images, progress.seconds(), loss.item<double>()});
    }
    if ((step + 1) % settings.checkpoint_every == 0 || step + 1 == settings.steps)
      checkpoint.save(step + 1, progress.state());
  }
  checkpoint.finish();

  const double held_out = held_out_loss(model, mesh, text, settings);
  const std::string written = sample(model, mesh, text, settings);
  if (world.rank() != 0) return;
  progress.finish();
  if (points.size() > 1) fmt::print("median step: {:.4f} s\n", median_step(points));
  write_loss_curve(points, title_of(settings), settings.out, /*digits=*/9);
  if (settings.pipeline > 1 && !points.empty()) draw(model.schedule(), timeline, settings);
  fmt::print("it writes: {}\n", written);
  fmt::print("held-out text, nats for each byte: gpt={:.4f} 5-gram={:.4f}\n", held_out,
             NGram(5, text.training()).cross_entropy(text.held_out()));
}

}  // namespace

int main(int argc, char** argv) {
  const Settings settings = parse_settings(argc, argv);
  at::set_num_threads(settings.threads);
  if (settings.float64) c10::set_default_dtype(caffe2::TypeMeta::Make<double>());
  return rpc::run_job(argc, argv, {collectives::layer()}, [&](rpc::Agent& agent) { train(agent, settings); },
                      {.processes = static_cast<std::size_t>(settings.processes())});
}
