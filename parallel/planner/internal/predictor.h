// Predictor: computes the predicted time and memory for each choice that plan() compares. A predictor keeps
// the stages of a choice for other choices that have the same stages.
//
// plan() creates a predictor for each call. Not thread-safe.
#pragma once

#include <weft/parallel/partition/partition.h>
#include <weft/parallel/planner/planner.h>
#include <weft/parallel/schedule/simulate.h>

#include <map>
#include <span>
#include <tuple>

namespace weft::planner {

// A schedule that schedule::generate() generates.
struct Kind {
  std::string_view name;
  int chunks;  // stages of each rank; 0: any number, of which plan() tries 2, 4, 8 ...
  bool splits_backward = false, v_shape = false;
};
std::span<const Kind> kinds();

[[noreturn]] void refuse_plan(const std::string& why);  // throws invalid_argument

class Predictor {
 public:
  // The arguments must outlive the predictor. invalid_argument: an argument is invalid.
  Predictor(const Model& model, const Machine& machine, const Options& options);

  int global_batch() const { return global_batch_; }

  // The reason why the choice is impossible even without a memory limit; nullopt: it is possible.
  std::optional<std::string> problem(const Choice& choice) const;
  // Call these only if problem() returns nullopt for the choice.
  std::vector<std::size_t> layers_of_stages(const Choice& choice);  // the number of layers of each stage
  double least_seconds(const Choice& choice);  // a lower bound of the step time, without a simulation
  Memory least_memory(const Choice& choice);   // of the rank that needs most, without activations
  Plan predict(const Choice& choice);

 private:
  struct Stages {
    partition::Partition cut;
    // weight_gradient: half of the backward without its all-reduces. input_gradient: the other half, and the
    // all-reduces.
    std::vector<schedule::StageCost> costs;
    std::vector<double> tensor_seconds;  // of the all-reduces in one direction
    std::vector<schedule::Edge> edges;
    std::vector<double> edge_bytes;
    // By stage: the seconds of the longest chain of stages that leads to it.
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
  std::size_t layers_ = 0;                                // without inputs
  bool splits_ = false;                                   // true: tensor parallel splits at least one layer
  std::map<std::pair<int, int>, RankModel> rank_models_;  // by micro-batch and tensor ranks
  // By micro-batch, tensor ranks, number of stages and balance.
  std::map<std::tuple<int, int, int, Balance>, Stages> stages_;
};

}  // namespace weft::planner
