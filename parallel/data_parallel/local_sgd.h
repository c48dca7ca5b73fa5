// LocalSgd: the ranks train apart, each with its own optimizer, and share what they have learned once in a
// round of several steps. For slow links between ranks.
//
//   data_parallel::LocalSgd outer{model->parameters(), {.interval = 100}};
//   ...
//   inner.step();                // of this rank's optimizer, with the gradients of this rank
//   if (outer.step()) {          // every 100th time
//     outer.reduce(group).get(); // if it fails, the parameters stay as they are
//     outer.apply();
//   }
//
// Local SGD (Stich, 2018): the parameters become the average over the ranks. DiLoCo (Douillard et al., 2023),
// with LocalSgdOptions::outer_optimizer: that optimizer steps the outer parameters, those of the end of the
// last round. Their gradient is the average of what each rank has moved away from them, towards the outer
// parameters. Streaming DiLoCo (Douillard et al., 2025): `fragments` and `keep`.
//
// A round has two phases, so that all ranks apply it or none does: between them, elastic::State::step() lets
// the ranks vote (docs/elastic.md). It has two more copies of the parameters. The parameters are equal on all
// ranks at the start. Not thread-safe.
#pragma once

#include <weft/parallel/collectives/group.h>

#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace weft::data_parallel {

// Makes the outer optimizer over these parameters.
using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>;
// SGD with Nesterov's momentum, as DiLoCo's authors use it.
WEFT_EXPORT MakeOptimizer nesterov(double learning_rate = 0.7, double momentum = 0.9);

struct LocalSgdOptions {
  std::int64_t interval = 100;         // inner steps from one round to the next
  MakeOptimizer outer_optimizer = {};  // given the outer parameters. Empty: parameters are averaged
  // The parameters are divided into this number of parts. Each round shares one of them, in turn, so that a
  // round sends less. Each part is shared every `interval` x `fragments` steps.
  std::size_t fragments = 1;
  // The weight of this rank's parameters, when apply() makes them the outer ones. Above 0 if inner steps run
  // between reduce() and apply(): these are then not all lost.
  double keep = 0;
};

class WEFT_EXPORT LocalSgd {
 public:
  // The parameters of floating point. Throws invalid_argument: none, an interval < 1, fragments < 1 or more
  // than parameters, keep outside [0, 1).
  LocalSgd(std::vector<at::Tensor> parameters, LocalSgdOptions options);
  LocalSgd(const LocalSgd&) = delete;
  LocalSgd& operator=(const LocalSgd&) = delete;

  // Counts an inner step. Returns whether a round is due.
  bool step() { return ++steps_ >= options_.interval; }
  // The first phase: begins to average. All ranks of the group call it. It changes no parameter, so after an
  // error it may be called again, with another group. Inner steps may run before the future is complete.
  [[nodiscard]] rpc::Future<void> reduce(const collectives::Group& group);
  // The second phase, without a collective: the outer step. Throws failed_precondition unless reduce() has
  // completed since the last one.
  void apply();
  // The parameters become the outer ones: gives up this rank's inner steps of the round.
  void reset();
  void begin_round() { steps_ = 0; }  // inner steps count from here

  std::int64_t steps() const { return steps_; }                                  // since the last reduce()
  std::uint64_t rounds() const { return rounds_; }                               // that were applied
  void set_rounds(std::uint64_t rounds) { rounds_ = rounds; }                    // from a checkpoint
  const std::vector<at::Tensor>& outer_parameters() const { return outer_; }     // the same on all ranks
  torch::optim::Optimizer* outer_optimizer() const { return optimizer_.get(); }  // null: none

  // Between rounds: the outer parameters, the state of the outer optimizer, the number of rounds. load() does
  // not change the parameters.
  void save(torch::serialize::OutputArchive& archive) const;
  void load(torch::serialize::InputArchive& archive);

 private:
  struct Range {
    std::size_t begin = 0, end = 0;
  };
  Range due() const;  // the parameters that this round shares

  const LocalSgdOptions options_;
  const std::vector<at::Tensor> parameters_;
  std::vector<Range> fragments_;
  std::vector<at::Tensor> outer_, sums_;  // sums_: what reduce() averages
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  bool reducing_ = false;  // since reduce(), until apply()
  std::shared_ptr<std::atomic<bool>> reduced_ = std::make_shared<std::atomic<bool>>(false);
  std::int64_t steps_ = 0;
  std::uint64_t rounds_ = 0;
};

}  // namespace weft::data_parallel
