#include "elastic_train/training.h"

#include <fmt/format.h>
#include <unistd.h>
#include <weft/parallel/data_parallel/distributed_data_parallel.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "fashion_mnist/images.h"

namespace collectives = weft::collectives;
namespace data_parallel = weft::data_parallel;
namespace elastic = weft::elastic;
namespace fs = std::filesystem;

namespace {

constexpr std::int64_t row_steps = 10;  // between commits, and between rows of the history

torch::nn::Sequential network(std::uint64_t seed) {
  using namespace torch::nn;
  torch::manual_seed(seed);
  return Sequential(Conv2d(Conv2dOptions(1, 16, 5).stride(2)), ReLU(),
                    Conv2d(Conv2dOptions(16, 32, 5).stride(2)), ReLU(), Flatten(), Linear(32 * 4 * 4, 64),
                    ReLU(), Linear(64, 10));
}

Dataset images(const Settings& settings) {
  Dataset data(settings.data, "train");
  data.truncate(settings.images);
  return data;
}

}  // namespace

Training::Training(const Settings& settings, std::string worker, std::shared_ptr<weft::rpc::Gauges> gauges)
    : settings_(settings),
      worker_(std::move(worker)),
      gauges_(std::move(gauges)),
      data_(images(settings)),
      model_(network(settings.seed)),
      optimizer_(model_->parameters(), torch::optim::SGDOptions(settings.learning_rate).momentum(0.9)),
      sampler_(static_cast<std::size_t>(data_.size()), {.seed = settings.seed}) {
  state_.add("model", model_).add("optimizer", optimizer_).add("sampler", sampler_);
  state_.add("epoch", epoch_).add("step", step_).add("losses", losses_).add("history", history_);
  load();
  if (settings.log.empty()) return;
  fs::create_directories(settings.log);
  log_.open(fs::path(settings.log) / fmt::format("{}.{}", worker_, ::getpid()));
}

void Training::begin(const elastic::Change& change) {
  generation_ = change.generation;
  rank_ = change.group.rank();
  fmt::print("{} (process {}) begins generation {} as rank {} of {}\n", worker_, ::getpid(), generation_,
             rank_, change.group.size());
}

void Training::train(const collectives::Group& group) {
  data_parallel::DistributedDataParallel ddp{group, model_};
  const auto share = static_cast<std::size_t>((settings_.batch_size + group.size() - 1) / group.size());
  auto loader = torch::data::make_data_loader(Images(data_), sampler_, share);
  for (; epoch_ < settings_.epochs; ++epoch_) {
    sampler_.set_epoch(static_cast<std::uint64_t>(epoch_));
    for (auto& batch : sampler_.batches(*loader)) {
      const double left = 1 - static_cast<double>(step_) / static_cast<double>(settings_.steps());
      for (auto& parameters : optimizer_.param_groups())
        parameters.options().set_lr(settings_.learning_rate * std::max(left, 0.0));
      optimizer_.zero_grad();
      const at::Tensor loss =
          torch::cross_entropy_loss(ddp.forward(batch.images), batch.labels) * sampler_.round().weight;
      log(group, loss.item<double>());
      loss.backward();
      optimizer_.step();
      sampler_.record();

      const at::Tensor of_all = loss.detach().clone();
      group.all_reduce(of_all, collectives::ReduceOp::avg).get();
      losses_ += of_all.item<double>();
      gauges_->set("loss", of_all.item<double>());
      if (++step_ % row_steps != 0) continue;
      history_.push_back({step_, std::exchange(losses_, 0) / row_steps, generation_, group.members()});
      if (group.rank() == 0) fmt::print("{}\n", to_line(history_.back()));
      state_.commit();  // commit() also detects workers that join and leave
    }
  }
  if (group.rank() == 0) report(group);
}

// Called before the gradients are averaged. If one worker completes the step, all workers have therefore
// logged it.
void Training::log(const collectives::Group& group, double loss) {
  if (!log_.is_open()) return;
  const elastic::Round round = sampler_.round();
  log_ << fmt::format("{} {} {} {} {} {}", step_, epoch_, generation_, group.rank(), group.size(), loss);
  for (std::size_t i = 0; i < round.own; ++i) log_ << ' ' << round.indices[i];
  log_ << std::endl;
}

void Training::report(const collectives::Group& group) {
  write_history(history_, fmt::format("Elastic training on Fashion-MNIST, {} generations", generation_),
                settings_.out);
  fmt::print("the picture is {0}/membership.svg, the losses are in {0}/loss.csv\n", settings_.out);
  fmt::print("steps={} workers={} test_accuracy={:.4f}\n", step_, group.size(),
             accuracy(*model_, Dataset(settings_.data, "t10k")));
}

void Training::left() {
  fmt::print("{} leaves after step {}\n", worker_, step_);
  if (settings_.checkpoint.empty() || rank_ != 0) return;
  torch::serialize::OutputArchive archive, parts[3];
  model_->save(parts[0]);
  optimizer_.save(parts[1]);
  sampler_.save(parts[2]);
  archive.write("model", parts[0]);
  archive.write("optimizer", parts[1]);
  archive.write("sampler", parts[2]);
  archive.write("epoch", at::tensor(epoch_));
  archive.write("step", at::tensor(step_));
  c10::List<std::string> rows;
  for (const Row& row : history_) rows.push_back(to_line(row));
  archive.write("history", c10::IValue(rows));
  fs::create_directories(settings_.checkpoint);
  const std::string path = fmt::format("{}/step-{:09}.pt", settings_.checkpoint, step_);
  const std::string incomplete = fmt::format("{}.{}", path, worker_);
  archive.save_to(incomplete);
  fs::rename(incomplete, path);
}

// Loads the latest checkpoint. The loaded state counts as committed, so it replaces the state of a worker
// that has found no checkpoint.
void Training::load() {
  std::string latest;
  if (!settings_.checkpoint.empty() && fs::exists(settings_.checkpoint))
    for (const auto& file : fs::directory_iterator(settings_.checkpoint))
      if (file.path().extension() == ".pt") latest = std::max(latest, file.path().string());
  if (latest.empty()) return;
  torch::serialize::InputArchive archive, part;
  archive.load_from(latest);
  archive.read("model", part);
  model_->load(part);
  archive.read("optimizer", part);
  optimizer_.load(part);
  archive.read("sampler", part);
  sampler_.load(part);
  const auto number = [&](const char* key) {
    at::Tensor value;
    archive.read(key, value);
    return value.item<std::int64_t>();
  };
  epoch_ = number("epoch");
  step_ = number("step");
  c10::IValue rows;
  archive.read("history", rows);
  for (const auto& row : rows.toListRef()) history_.push_back(row_of(row.toStringRef()).value());
  state_.commit();
  fmt::print("{} resumes after step {}\n", worker_, step_);
}
