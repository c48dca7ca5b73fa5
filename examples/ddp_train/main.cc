// Trains a ResNet-18 on Fashion-MNIST, data parallel:  ddp_train -n 2 --epochs 2
//
// train() is a local training loop in which five lines were changed. They are numbered.
#include <fmt/format.h>
#include <torch/torch.h>
#include <weft/parallel/collectives/collectives_layer.h>
#include <weft/parallel/data_parallel/broadcast_state.h>
#include <weft/parallel/data_parallel/distributed_data_parallel.h>
#include <weft/parallel/data_parallel/distributed_sampler.h>
#include <weft/parallel/data_parallel/hooks/cast_hook.h>
#include <weft/rpc/membership/run_job.h>

#include <cmath>
#include <numbers>
#include <utility>

#include "ddp_train/checkpoint.h"
#include "ddp_train/resnet.h"
#include "ddp_train/settings.h"
#include "fashion_mnist/dataset.h"
#include "fashion_mnist/loss_curve.h"
#include "fashion_mnist/progress.h"

namespace collectives = weft::collectives;
namespace data_parallel = weft::data_parallel;
namespace rpc = weft::rpc;

namespace {

// The training images, as LibTorch's data loader reads them.
struct Images : torch::data::datasets::BatchDataset<Images, Batch> {
  explicit Images(Dataset d) : data(std::move(d)) {}
  Batch get_batch(at::ArrayRef<std::size_t> indices) override {
    const std::vector<std::int64_t> rows(indices.begin(), indices.end());
    return data.batch(at::tensor(rows, at::kLong));
  }
  torch::optional<std::size_t> size() const override { return static_cast<std::size_t>(data.size()); }
  Dataset data;
};

// Up to the highest rate in a tenth of the steps, then down along a cosine.
double rate_at(double done, double highest) {
  return done < 0.1 ? highest * done / 0.1
                    : highest * (1 + std::cos(std::numbers::pi * (done - 0.1) / 0.9)) / 2;
}

double accuracy(ResNet18& model, const Dataset& test) {
  const torch::NoGradGuard no_grad;
  model.eval();
  std::int64_t right = 0;
  for (std::int64_t begin = 0; begin < test.size(); begin += 500) {
    const Batch batch = test.batch(begin, begin + 500);
    right += (model.forward(batch.images).argmax(1) == batch.labels).sum().item<std::int64_t>();
  }
  model.train();
  return static_cast<double>(right) / static_cast<double>(test.size());
}

void train(rpc::Agent& agent, const Settings& settings) {
  auto group = collectives::Group::create(agent).get();  // 1
  torch::manual_seed(settings.seed);
  auto model = std::make_shared<ResNet18>(10, settings.width);
  torch::optim::SGD optimizer(
      model->parameters(), torch::optim::SGDOptions(settings.learning_rate).momentum(0.9).weight_decay(5e-4));
  Dataset data(settings.data, "train");
  data.truncate(settings.images);
  // Of uneven ranks each later one leaves out an eighth.
  const auto size = static_cast<std::size_t>(
      settings.uneven ? data.size() - data.size() * group.rank() / 8 / group.size() : data.size());
  data_parallel::DistributedSampler sampler{size, group, {.drop_last = true, .seed = settings.seed}};  // 2
  auto loader =
      torch::data::make_data_loader(Images(data), sampler, static_cast<std::size_t>(settings.batch_size));

  const Checkpoint checkpoint(settings.checkpoint);
  auto [step, state] = checkpoint.load(*model, optimizer, sampler);
  data_parallel::DistributedDataParallel ddp{group, model};  // 3
  if (settings.compress) ddp.set_hook(std::make_shared<data_parallel::CastHook>(at::kBFloat16));

  // The same on all ranks, also if they have different numbers of batches.
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
      recent += loss.item<double>() / 10;
      if (++step % 10 == 0)
        points.push_back({agent.name(), progress.state().images, state.images, progress.seconds(),
                          std::exchange(recent, 0)});
      if (group.rank() == 0 && step % settings.checkpoint_every == 0)
        checkpoint.save(*model, optimizer, sampler, step, progress.state());
    }
    if (settings.uneven) {  // the ranks have made different numbers of steps
      data_parallel::broadcast_optimizer_state(group, optimizer, ddp.join_source());
      step = group.broadcast_object(step, ddp.join_source()).get();
    }
  }
  progress.finish();

  const auto all = group.all_gather_object(points).get();
  if (group.rank() != 0) return;
  points.clear();
  for (const auto& of_rank : all) points.insert(points.end(), of_rank.begin(), of_rank.end());
  write_loss_curve(points, fmt::format("ResNet-18 on Fashion-MNIST, {} ranks", group.size()), settings.out);
  fmt::print("the loss curve is in {0}/loss.svg and {0}/loss.csv\n", settings.out);
  fmt::print("test_accuracy={:.4f}\n", accuracy(*model, Dataset(settings.data, "t10k")));
}

}  // namespace

int main(int argc, char** argv) {
  const Settings settings = parse_settings(argc, argv);
  at::set_num_threads(settings.threads);
  return rpc::run_job(argc, argv, {collectives::layer()}, [&](rpc::Agent& agent) { train(agent, settings); });
}
