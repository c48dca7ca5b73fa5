// SharedStep: one step of a LocalPipeline, which all ranks share. RankStep: a rank's part of it.
#pragma once

#include <weft/parallel/pipeline/internal/value_exchange.h>
#include <weft/parallel/pipeline/local_pipeline.h>
#include <weft/parallel/pipeline/stage_runner.h>

#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace weft::pipeline {

// What each rank computes at the moment. Thread-safe.
class Activities {
 public:
  explicit Activities(std::size_t ranks) : actions_(ranks) {}
  void set(int rank, std::string action);  // empty: it waits
  std::string text() const;

 private:
  mutable std::mutex mutex_;  // guards what follows
  std::vector<std::string> actions_;
};

struct SharedStep {
  const StageGraph& graph;
  const schedule::Schedule& schedule;
  const LocalOptions& options;
  const bool with_backward;
  const std::vector<Values> inputs, targets;  // by micro-batch
  const std::vector<double> weights;          // of the micro-batches' losses
  const std::chrono::steady_clock::time_point began = std::chrono::steady_clock::now();

  ValueExchange exchange = {};
  Activities activities{schedule.ranks.size()};
  std::vector<at::Tensor> losses = std::vector<at::Tensor>(inputs.size());
  std::vector<Values> outputs = std::vector<Values>(inputs.size());  // of the model, without backward
};

class RankStep {
 public:
  // runners: by stage; this rank uses those of its stages.
  RankStep(SharedStep& step, std::vector<StageRunner>& runners, int rank);

  // Runs the rank's actions, until one fails on any rank. Errors go to the exchange.
  std::vector<schedule::Span> run();

 private:
  double seconds() const;
  void run(const schedule::Action& action);
  void compute(const schedule::Action& action);
  at::Tensor here(const at::Tensor& tensor) const;
  Values inputs_of(int stage, int microbatch);
  void forward(StageRunner& runner, const schedule::Action& action);
  Values sent(const schedule::Edge& edge, const Values& outputs) const;
  bool gets_original(const schedule::Edge& edge, int output) const;
  void end(StageRunner& runner, int microbatch, const Values& outputs);
  void take_gradients(StageRunner& runner, int stage, int microbatch);
  void give_gradients(int stage, int microbatch, const Values& gradients);

  SharedStep& step_;
  std::vector<StageRunner>& runners_;
  const int rank_;
  const std::vector<schedule::Action>& actions_;
  const std::optional<c10::Device> device_;
  std::map<std::pair<int, int>, Values> outputs_;  // by stage and micro-batch, until the backward
};

}  // namespace weft::pipeline
