// The state of a run. Each rank saves its parts of the state, and a run can resume on any mesh.
#pragma once

#include <weft/parallel/pipeline/group_pipeline.h>
#include <weft/parallel/sharded/checkpoint/checkpoints.h>
#include <weft/parallel/sharded/fully_sharded_optimizer.h>

#include <optional>
#include <string>

#include "fashion_mnist/progress.h"

// All ranks call the functions of a Checkpoint. The model and the optimizer must outlive the object.
class Checkpoint {
 public:
  // Saves nothing and finds nothing if the folder is empty.
  Checkpoint(const weft::collectives::Group& world, const std::string& folder,
             weft::pipeline::GroupPipeline& model, weft::sharded::FullyShardedOptimizer& optimizer);

  // Copies the state and returns; a thread writes it. progress: of rank 0.
  void save(std::int64_t step, const Progress::State& progress);
  void finish();  // waits for the last save, and throws its error
  // Loads the newest checkpoint, and returns the progress of the run that saved it.
  Progress::State load();

 private:
  weft::pipeline::GroupPipeline& model_;
  weft::sharded::FullyShardedOptimizer& optimizer_;
  std::optional<weft::sharded::Checkpoints> files_;
  weft::rpc::Future<void> saved_;
};
