#include "gpt/checkpoint.h"

using namespace weft;

Checkpoint::Checkpoint(const collectives::Group& world, const std::string& folder,
                       pipeline::GroupPipeline& model, sharded::FullyShardedOptimizer& optimizer)
    : model_(model), optimizer_(optimizer) {
  if (!folder.empty()) files_.emplace(world, folder);
}

void Checkpoint::save(std::int64_t step, const Progress::State& progress) {
  if (!files_) return;
  finish();
  sharded::SlicedState state;
  model_.sharded().add_to(state);
  optimizer_.add_to(state);
  state.notes["bytes"] = std::to_string(progress.images);
  state.notes["loss"] = std::to_string(progress.loss);
  saved_ = files_->save(step, state);
}

void Checkpoint::finish() {
  if (saved_.valid()) saved_.get();
}

Progress::State Checkpoint::load() {
  const auto step = files_ ? files_->latest() : std::nullopt;
  if (!step) return {};
  sharded::SlicedState state;
  model_.sharded().add_to(state);
  optimizer_.add_wanted_to(state, files_->names(*step));
  state.notes = files_->load(*step, state);
  optimizer_.take_from(state);
  return {.images = std::stoll(state.notes.at("bytes")),
          .batches = *step,
          .loss = std::stod(state.notes.at("loss"))};
}
