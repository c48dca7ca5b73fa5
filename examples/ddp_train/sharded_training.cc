#include "ddp_train/sharded_training.h"

#include <fmt/format.h>
#include <weft/parallel/data_parallel/distributed_data_parallel.h>
#include <weft/parallel/sharded/checkpoint/checkpoints.h>
#include <weft/parallel/sharded/fully_sharded_data_parallel.h>
#include <weft/parallel/sharded/fully_sharded_optimizer.h>
#include <weft/parallel/sharded/sharded_optimizer.h>
#include <weft/parallel/training/distributed_sampler.h>

#include <memory>
#include <optional>
#include <utility>

#include "ddp_train/training.h"
#include "fashion_mnist/progress.h"

namespace collectives = weft::collectives;
namespace data_parallel = weft::data_parallel;
namespace training = weft::training;
namespace sharded = weft::sharded;

namespace {

// The model and its optimizer. Each rank has a part of their state.
struct Trainer {
  virtual ~Trainer() = default;
  virtual at::Tensor forward(const at::Tensor& images) = 0;
  virtual void zero_grad() = 0;
  virtual void step(double rate) = 0;
  virtual double accuracy(const Dataset& test) = 0;
  virtual void add_to(sharded::SlicedState& state) = 0;
  // add_wanted_to(): adds tensors into which a checkpoint with these names is loaded. take_from(): takes the
  // loaded state from these tensors.
  virtual void add_wanted_to(sharded::SlicedState& state, const std::vector<std::string>& names) = 0;
  virtual void take_from(const sharded::SlicedState& state) = 0;
};

torch::optim::SGDOptions sgd(double rate) {
  return torch::optim::SGDOptions(rate).momentum(0.9).weight_decay(5e-4);
}

// Each rank has the whole model, and a part of the optimizer's state.
class Zero1 : public Trainer {
 public:
  Zero1(const collectives::Group& group, const std::shared_ptr<ResNet18>& model, double rate)
      : ddp_(group, model), optimizer_(ddp_, sgd(rate)) {}
  at::Tensor forward(const at::Tensor& images) override { return ddp_.forward(images); }
  void zero_grad() override { optimizer_.zero_grad(); }
  void step(double rate) override {
    optimizer_.set_learning_rate(rate);
    optimizer_.step();
  }
  double accuracy(const Dataset& test) override { return ::accuracy(ddp_.module(), test); }
  void add_to(sharded::SlicedState& state) override {
    sharded::add_module(state, ddp_.module());
    optimizer_.add_to(state);
  }
  void add_wanted_to(sharded::SlicedState& state, const std::vector<std::string>& names) override {
    sharded::add_module(state, ddp_.module());
    optimizer_.add_wanted_to(state, names);
  }
  void take_from(const sharded::SlicedState& state) override { optimizer_.take_from(state); }

 private:
  data_parallel::DistributedDataParallel<ResNet18> ddp_;
  sharded::ShardedOptimizer optimizer_;
};

// Each rank has a part of everything.
class FullySharded : public Trainer {
 public:
  FullySharded(const collectives::Group& group, const std::shared_ptr<ResNet18>& model, double rate,
               bool splits_between)
      : fsdp_(group, model, {.block = "stages.*", .reshard_after_forward = splits_between}),
        optimizer_(fsdp_, sgd(rate)) {}
  at::Tensor forward(const at::Tensor& images) override { return fsdp_.forward(images); }
  void zero_grad() override { optimizer_.zero_grad(); }
  void step(double rate) override {
    optimizer_.set_learning_rate(rate);
    optimizer_.step();
  }
  double accuracy(const Dataset& test) override {
    const auto whole = fsdp_.gather();
    return ::accuracy(fsdp_.module(), test);
  }
  void add_to(sharded::SlicedState& state) override {
    fsdp_.add_to(state);
    optimizer_.add_to(state);
  }
  void add_wanted_to(sharded::SlicedState& state, const std::vector<std::string>& names) override {
    fsdp_.add_to(state);
    optimizer_.add_wanted_to(state, names);
  }
  void take_from(const sharded::SlicedState& state) override { optimizer_.take_from(state); }

 private:
  sharded::FullyShardedDataParallel<ResNet18> fsdp_;
  sharded::FullyShardedOptimizer optimizer_;
};

std::unique_ptr<Trainer> make_trainer(const collectives::Group& group, const Settings& settings) {
  torch::manual_seed(settings.seed);
  const auto model = std::make_shared<ResNet18>(10, settings.width, 1, settings.group_norm);
  if (settings.shard == "zero1") return std::make_unique<Zero1>(group, model, settings.learning_rate);
  return std::make_unique<FullySharded>(group, model, settings.learning_rate, settings.shard == "zero3");
}

}  // namespace

void train_sharded(weft::rpc::Agent& agent, weft::rpc::Gauges& gauges, const Settings& settings) {
  const auto group = collectives::Group::create(agent).get();
  const auto trainer = make_trainer(group, settings);
  Dataset data(settings.data, "train");
  data.truncate(settings.images);
  training::DistributedSampler sampler{
      static_cast<std::size_t>(data.size()), group, {.drop_last = true, .seed = settings.seed}};
  auto loader =
      torch::data::make_data_loader(Images(data), sampler, static_cast<std::size_t>(settings.batch_size));
  Progress progress(agent.name(), settings.epochs * static_cast<std::int64_t>(sampler.samples()));

  std::int64_t step = 0;
  std::optional<sharded::Checkpoints> checkpoints;
  if (!settings.checkpoint.empty()) {
    checkpoints.emplace(group, settings.checkpoint);
    if (const auto latest = checkpoints->latest()) {
      step = *latest;
      sharded::SlicedState state;
      trainer->add_wanted_to(state, checkpoints->names(step));
      sharded::add_sampler(state, sampler);
      state.notes = checkpoints->load(step, state);
      trainer->take_from(state);
      sharded::take_sampler(state, sampler);
      progress.go_on(
          {std::stoll(state.notes.at("images")) / group.size(), step, std::stod(state.notes.at("loss"))});
      fmt::print("{}: resumes after step {}\n", agent.name(), step);
    }
  }

  const double steps = static_cast<double>(settings.epochs) *
                       static_cast<double>(data.size() / group.size() / settings.batch_size + 1);
  const std::int64_t images_before = progress.state().images;
  weft::rpc::Future<void> saved;
  std::vector<Point> points;
  double recent = 0;  // mean loss of the last ten steps
  for (auto epoch = static_cast<std::int64_t>(sampler.epoch()); epoch < settings.epochs; ++epoch) {
    sampler.set_epoch(static_cast<std::size_t>(epoch));
    for (auto& batch : sampler.batches(*loader)) {
      trainer->zero_grad();
      const at::Tensor loss = torch::cross_entropy_loss(trainer->forward(batch.images), batch.labels);
      loss.backward();
      trainer->step(rate_at(std::min(static_cast<double>(step) / steps, 1.0), settings.learning_rate));

      const at::Tensor mean = loss.detach().to(at::kDouble);  // over the ranks
      group.all_reduce(mean, collectives::ReduceOp::avg).get();
      progress.advance(batch.size(), mean.item<double>());
      gauges.set("loss", mean.item<double>());
      recent += mean.item<double>() / 10;
      if (++step % 10 == 0)
        points.push_back({agent.name(), progress.state().images, images_before, progress.seconds(),
                          std::exchange(recent, 0)});
      if (checkpoints && step % settings.checkpoint_every == 0) {
        sharded::SlicedState state;
        trainer->add_to(state);
        sharded::add_sampler(state, sampler);
        state.notes["images"] = std::to_string(progress.state().images * group.size());
        state.notes["loss"] = std::to_string(progress.state().loss);
        if (saved.valid()) saved.get();
        saved = checkpoints->save(step, state);  // a thread writes
      }
    }
  }
  if (saved.valid()) saved.get();
  progress.finish();
  report(group, points, settings);
  const double right = trainer->accuracy(Dataset(settings.data, "t10k"));
  if (group.rank() == 0) fmt::print("test_accuracy={:.4f}\n", right);
}
