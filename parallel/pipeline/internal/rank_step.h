// RankStep: one rank's part of a step. StepContext: the state that the ranks of one process share in a step.
#pragma once

#include <weft/parallel/pipeline/internal/stage_parameters.h>
#include <weft/parallel/pipeline/internal/value_exchange.h>
#include <weft/parallel/pipeline/loss.h>
#include <weft/parallel/pipeline/microbatches.h>
#include <weft/parallel/pipeline/stage_runner.h>
#include <weft/parallel/schedule/simulate.h>
#include <weft/rpc/core/mutex.h>

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>

namespace weft::pipeline {

// The action that each rank of this process computes at the moment. Thread-safe.
class Activities {
 public:
  explicit Activities(std::size_t ranks) : actions_(ranks) {}
  void set(int rank, std::string action);  // empty: the rank waits
  std::string text() const;

 private:
  mutable rpc::Mutex mutex_;
  std::vector<std::string> actions_ WEFT_GUARDED_BY(mutex_);
};

struct StepContext {
  const StageGraph& graph;
  const schedule::Schedule& schedule;
  const Loss& loss;
  const std::vector<c10::Device>& devices;  // by rank; empty: where the tensors are
  std::chrono::nanoseconds timeout;         // for a value that a stage waits for
  Microbatches data;
  bool with_backward = true;
  std::map<int, StageParameters>* parameters = nullptr;  // by stage; null: their actions do nothing
  std::optional<at::ScalarType> input_type = {};         // of floating-point inputs; empty: unchanged
  std::shared_ptr<ValueExchange> exchange = std::make_shared<ValueExchange>();
  // Passes a value to the rank of the stage that uses it.
  std::function<void(const ValueExchange::Key&, Values)> send =
      [to = exchange](const auto& key, Values values) { to->put(key, std::move(values)); };
  // Runs a computation of a stage.
  std::function<void(const std::function<void()>&)> within = [](const auto& body) { body(); };

  const std::chrono::steady_clock::time_point began = std::chrono::steady_clock::now();
  std::shared_ptr<Activities> activities = nullptr;  // for errors of values that do not arrive
  std::vector<at::Tensor> losses = std::vector<at::Tensor>(data.count());
  std::vector<Values> outputs = std::vector<Values>(data.count());  // of the model, without backward
};

class RankStep {
 public:
  // runners: by stage; at least those of the rank's stages.
  RankStep(StepContext& step, std::map<int, StageRunner>& runners, int rank);

  // Runs the rank's actions, until all have run or an action has failed on some rank. Errors are passed to
  // the exchange.
  std::vector<schedule::Span> run();

 private:
  double seconds() const;
  bool is_for_a_forward(std::size_t unshard) const;
  void run(const schedule::Action& action);
  void compute(const schedule::Action& action);
  void run_parameters(const schedule::Action& action);
  void begins(const schedule::Action& action);  // the values that the action uses have arrived
  at::Tensor here(const at::Tensor& tensor) const;
  Values inputs_of(int stage, int microbatch);
  void forward(StageRunner& runner, const schedule::Action& action);
  Values sent(const schedule::Edge& edge, const Values& outputs) const;
  bool shares_gathered_memory(int stage, const at::Tensor& output) const;
  bool gets_original(const schedule::Edge& edge, int output) const;
  void recompute(StageRunner& runner, const schedule::Action& action);
  void add_loss(StageRunner& runner, int microbatch, const Values& outputs);
  void take_gradients(StageRunner& runner, int stage, int microbatch);
  void give_gradients(int stage, int microbatch, const Values& gradients);
  void add_ties();
  void add(std::size_t tie);

  StepContext& step_;
  std::map<int, StageRunner>& runners_;
  const int rank_;
  const std::vector<schedule::Action>& actions_;
  const std::optional<c10::Device> device_;
  std::set<std::size_t> unused_;                   // in an evaluation: the unshard actions for backwards
  std::optional<double> started_;                  // when the action that runs began to compute
  std::set<std::pair<int, int>> recomputed_;       // by stage and micro-batch
  std::map<std::pair<int, int>, Values> outputs_;  // by stage and micro-batch, until the backward
};

}  // namespace weft::pipeline
