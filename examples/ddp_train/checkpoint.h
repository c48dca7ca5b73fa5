// The state of a run, which is the same on all ranks: rank 0 saves it, and all ranks resume from it.
#pragma once

#include <torch/torch.h>
#include <weft/parallel/training/distributed_sampler.h>

#include <string>

#include "fashion_mnist/progress.h"

class Checkpoint {
 public:
  // Saves nothing and finds nothing if the folder is empty.
  explicit Checkpoint(std::string folder) : folder_(std::move(folder)) {}

  // Replaces the file in one step, so that a process that dies leaves the earlier file.
  void save(const torch::nn::Module& model, const torch::optim::Optimizer& optimizer,
            const weft::training::DistributedSampler& sampler, std::int64_t step,
            const Progress::State& progress) const;
  struct Found {
    std::int64_t step = 0;
    Progress::State progress = {};
  };
  Found load(torch::nn::Module& model, torch::optim::Optimizer& optimizer,
             weft::training::DistributedSampler& sampler) const;

 private:
  std::string path() const { return folder_ + "/ddp_train.pt"; }
  std::string folder_;
};
