// Predictor: the prediction for each choice of plan(). Choices that have the same stages share them.
//
// Thread-safety: none needed.
#pragma once

#include <weft/parallel/partition/partition.h>
#include <weft/parallel/planner/planner.h>
#include <weft/parallel/schedule/simulate.h>

#include <map>
#include <span>
#include <tuple>

namespace weft::planner {

// A generator of parallel/schedule.
struct Kind {
  std::string_view name;
  int chunks;  // 0: 2 and more
  bool splits_backward = false, v_shape = false;
};
std::span<const Kind> kinds();

[[noreturn]] void refuse_plan(const std::string& why);

class Predictor {
 public:
  // Refers to the arguments, and throws invalid_argument if they are wrong.
  Predictor(const Model& model, const Machine& machine, const Options& options);

  int global_batch() const { return global_batch_; }

  // Why the choice is impossible, whatever the memory is.
  std::optional<std::string> problem(const Choice& choice) const;
  // Of a choice without a problem:
  std::vector<std::size_t> layers_of_stages(const Choice& choice);  // their numbers
  double least_seconds(const Choice& choice);  // a lower bound of the step, without a simulation
  Memory least_memory(const Choice& choice);   // of the fullest rank, without activations
  Plan predict(const Choice& choice);

 private:
  struct Stages {
    partition::Partition cut;
    std::vector<schedule::StageCost> costs;  // a backward counts half as each of its parts
    std::vector<double> tensor_seconds;      // of the all-reduces in one direction
    std::vector<schedule::Edge> edges;
    std::vector<double> edge_bytes;
    // Of the longest chain of stages that leads to a stage.
    std::vector<double> forward_before, backward_before;
  };
  struct Simulated;

  const RankModel& rank_model_of(int microbatch, int tensor);
  const Stages& stages_of(const Choice& choice);
  int microbatches_of(const Choice& choice) const;
  schedule::Costs costs_of(const Choice& choice, const Stages& stages) const;
  std::vector<Memory> states_of(const Choice& choice, const Stages& stages) const;
  double reduced_seconds(const Choice& choice, const Stages& stages, const Simulated& simulated) const;
  double shared_core_seconds(const Grid& grid, double busy) const;

  static Simulated simulate(const Choice& choice, const Stages& stages, const schedule::Costs& costs,
                            int microbatches);
  static Simulated simulate_all(const Choice& choice, const Stages& stages, const schedule::Costs& costs,
                                int microbatches);

  const Model& model_;
  const Machine& machine_;
  const Options& options_;
  int global_batch_ = 0;
  std::size_t layers_ = 0;                                       // that are not inputs
  bool splits_ = false;                                          // any layer
  std::map<std::pair<int, int>, RankModel> rank_models_;         // by micro-batch and tensor ranks
  std::map<std::tuple<int, int, int, Balance>, Stages> stages_;  // and number of stages
};

}  // namespace weft::planner
