#include "ddp_train/checkpoint.h"

#include <filesystem>

namespace fs = std::filesystem;

void Checkpoint::save(const torch::nn::Module& model, const torch::optim::Optimizer& optimizer,
                      const weft::training::DistributedSampler& sampler, std::int64_t step,
                      const Progress::State& progress) const {
  if (folder_.empty()) return;
  torch::serialize::OutputArchive archive, parts[3];
  model.save(parts[0]);
  optimizer.save(parts[1]);
  sampler.save(parts[2]);
  archive.write("model", parts[0]);
  archive.write("optimizer", parts[1]);
  archive.write("sampler", parts[2]);
  archive.write("step", at::tensor(step));
  archive.write("images", at::tensor(progress.images));
  archive.write("batches", at::tensor(progress.batches));
  archive.write("loss", at::tensor(progress.loss, at::kDouble));
  fs::create_directories(folder_);
  archive.save_to(path() + ".new");
  fs::rename(path() + ".new", path());
}

Checkpoint::Found Checkpoint::load(torch::nn::Module& model, torch::optim::Optimizer& optimizer,
                                   weft::training::DistributedSampler& sampler) const {
  if (folder_.empty() || !fs::exists(path())) return {};
  torch::serialize::InputArchive archive, part;
  archive.load_from(path());
  archive.read("model", part);
  model.load(part);
  archive.read("optimizer", part);
  optimizer.load(part);
  archive.read("sampler", part);
  sampler.load(part);
  const auto number = [&](const char* key) {
    at::Tensor value;
    archive.read(key, value);
    return value.item();
  };
  return {number("step").toLong(),
          {number("images").toLong(), number("batches").toLong(), number("loss").toDouble()}};
}
