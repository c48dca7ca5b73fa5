#include "parameter_server/checkpoints.h"

#include <algorithm>
#include <charconv>

namespace fs = std::filesystem;

Checkpoints::Checkpoints(const Settings& settings, const weft::rpc::Job& job)
    : folder_(settings.checkpoint),
      every_(settings.checkpoint_every),
      trainer_(job.rank()),
      trainers_(job.world_size() - 1) {}

std::optional<std::int64_t> Checkpoints::newest() const {
  if (!fs::exists(folder_)) return std::nullopt;
  std::optional<std::int64_t> newest;
  for (const auto& entry : fs::directory_iterator(folder_)) {
    const std::string name = entry.path().filename();
    std::int64_t step = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
    if (error != std::errc() || end != name.data() + name.size() || !whole(step)) continue;
    newest = std::max(newest.value_or(step), step);
  }
  return newest;
}

bool Checkpoints::due(std::int64_t step) const { return asked_for() && step % every_ == 0; }

void Checkpoints::written(std::int64_t step) const {
  const fs::path old = file(step - 2 * every_);
  fs::remove(old);
  std::error_code not_empty;  // set if the folder still has the file of another trainer
  fs::remove(old.parent_path(), not_empty);
}

fs::path Checkpoints::file(std::int64_t step, std::size_t trainer) const {
  return folder_ / std::to_string(step) / ("trainer" + std::to_string(trainer));
}

bool Checkpoints::whole(std::int64_t step) const {
  for (std::size_t trainer = 1; trainer <= trainers_; ++trainer)
    if (!fs::exists(file(step, trainer))) return false;
  return true;
}
