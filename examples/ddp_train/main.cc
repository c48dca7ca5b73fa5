// Trains a ResNet-18 on Fashion-MNIST, data parallel:  ddp_train -n 2 --epochs 2
//
// train() is a local training loop in which five lines were changed. These lines are numbered. With --shard
// the state of the training is split over the ranks (sharded_training.cc).
#include <fmt/format.h>
#include <torch/torch.h>
#include <weft/parallel/collectives/collectives_layer.h>
#include <weft/parallel/data_parallel/distributed_data_parallel.h>
#include <weft/parallel/data_parallel/hooks/cast_hook.h>
#include <weft/parallel/training/broadcast_state.h>
#include <weft/parallel/training/distributed_sampler.h>
#include <weft/rpc/agent/stats.h>
#include <weft/rpc/job/run_job.h>

#include <utility>

#include "ddp_train/checkpoint.h"
#include "ddp_train/resnet.h"
#include "ddp_train/settings.h"
#include "ddp_train/sharded_training.h"
#include "ddp_train/training.h"
#include "fashion_mnist/progress.h"

namespace collectives = weft::collectives;
namespace data_parallel = weft::data_parallel;
namespace training = weft::training;
namespace rpc = weft::rpc;

namespace {

void train(rpc::Agent& agent, rpc::Gauges& gauges, const Settings& settings) {
  auto group = collectives::Group::create(agent).get();  // 1
  torch::manual_seed(settings.seed);
  auto model = std::make_shared<ResNet18>(10, settings.width, 1, settings.group_norm);
  torch::optim::SGD optimizer(
      model->parameters(), torch::optim::SGDOptions(settings.learning_rate).momentum(0.9).weight_decay(5e-4));
  Dataset data(settings.data, "train");
  data.truncate(settings.images);
  // With --uneven, rank r of P ranks leaves out r / (8 P) of its images.
  const auto size = static_cast<std::size_t>(
      settings.uneven ? data.size() - data.size() * group.rank() / 8 / group.size() : data.size());
  training::DistributedSampler sampler{size, group, {.drop_last = true, .seed = settings.seed}};  // 2
  auto loader =
      torch::data::make_data_loader(Images(data), sampler, static_cast<std::size_t>(settings.batch_size));

  const Checkpoint checkpoint(settings.checkpoint);
  auto [step, state] = checkpoint.load(*model, optimizer, sampler);
  data_parallel::DistributedDataParallel ddp{group, model};  // 3
  if (settings.compress) ddp.set_hook(std::make_shared<data_parallel::CastHook>(at::kBFloat16));

  // This number is the same on all ranks, also if they have different numbers of batches.
  const double batches = static_cast<double>(data.size() / group.size() / settings.batch_size + 1);
  Progress progress(agent.name(), settings.epochs * static_cast<std::int64_t>(sampler.samples()));
  progress.go_on(state);
  if (step > 0) fmt::print("{}: resumes after step {}\n", agent.name(), step);
  std::vector<Point> points;
  double recent = 0;  // mean loss of the last ten steps
  for (auto epoch = static_cast<std::int64_t>(sampler.epoch()); epoch < settings.epochs; ++epoch) {
    sampler.set_epoch(static_cast<std::size_t>(epoch));  // 4
    auto delivered = sampler.batches(*loader);
    for (auto& batch : ddp.join(delivered)) {  // 5
      const double done = static_cast<double>(step) / (batches * static_cast<double>(settings.epochs));
      for (auto& parameters : optimizer.param_groups())
        parameters.options().set_lr(rate_at(std::min(done, 1.0), settings.learning_rate));
      optimizer.zero_grad();
      const at::Tensor loss = torch::cross_entropy_loss(ddp.forward(batch.images), batch.labels);
      loss.backward();
      optimizer.step();

      progress.advance(batch.size(), loss.item<double>());
      gauges.set("loss", loss.item<double>());
      recent += loss.item<double>() / 10;
      if (++step % 10 == 0)
        points.push_back({agent.name(), progress.state().images, state.images, progress.seconds(),
                          std::exchange(recent, 0)});
      if (group.rank() == 0 && step % settings.checkpoint_every == 0)
        checkpoint.save(*model, optimizer, sampler, step, progress.state());
    }
    if (settings.uneven) {  // the ranks have made different numbers of steps
      training::broadcast_optimizer_state(group, optimizer, ddp.join_source());
      step = group.broadcast_object(step, ddp.join_source()).get();
    }
  }
  progress.finish();

  report(group, points, settings);
  if (group.rank() == 0)
    fmt::print("test_accuracy={:.4f}\n", accuracy(*model, Dataset(settings.data, "t10k")));
}

}  // namespace

int main(int argc, char** argv) {
  const Settings settings = parse_settings(argc, argv);
  at::set_num_threads(settings.threads);
  const auto gauges = std::make_shared<rpc::Gauges>();  // for `weft dash`
  return rpc::run_job(argc, argv, {collectives::layer(), gauges->layer()}, [&](rpc::Agent& agent) {
    settings.shard.empty() ? train(agent, *gauges, settings) : train_sharded(agent, *gauges, settings);
  });
}
