// The training of one worker: the state that it keeps when the workers change, and the training loop.
#pragma once

#include <torch/torch.h>
#include <weft/parallel/collectives/group.h>
#include <weft/parallel/elastic/elastic_sampler.h>
#include <weft/parallel/elastic/run.h>
#include <weft/parallel/elastic/state.h>
#include <weft/rpc/agent/stats.h>

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "elastic_train/history.h"
#include "elastic_train/settings.h"
#include "fashion_mnist/dataset.h"

class Training {
 public:
  Training(const Settings& settings, std::string worker, std::shared_ptr<weft::rpc::Gauges> gauges);

  weft::elastic::State& state() { return state_; }
  void begin(const weft::elastic::Change& change);  // before train(), in each generation
  void train(const weft::collectives::Group& group);
  void left();  // this worker has left at a commit: the lowest rank of its group saves a checkpoint

 private:
  void load();
  void log(const weft::collectives::Group& group, double loss);
  void report(const weft::collectives::Group& group);

  const Settings& settings_;
  const std::string worker_;
  const std::shared_ptr<weft::rpc::Gauges> gauges_;
  Dataset data_;
  torch::nn::Sequential model_;
  torch::optim::SGD optimizer_;
  weft::elastic::ElasticSampler sampler_;
  std::int64_t epoch_ = 0, step_ = 0;
  double losses_ = 0;           // the sum of the losses since the last row
  std::vector<Row> history_;    // a row every ten steps
  weft::elastic::State state_;  // refers to the objects above

  std::uint64_t generation_ = 0;
  int rank_ = -1;
  std::ofstream log_;
};
