// LocalSgd: each rank trains with its own optimizer, and the ranks combine their parameters once in a round
// of several steps. For slow links between ranks.
//
//   data_parallel::LocalSgd outer{model->parameters(), {.interval = 100}};
//   ...
//   inner.step();                // of this rank's optimizer, with the gradients of this rank
//   if (outer.step()) {          // every 100th time
//     outer.reduce(group).get(); // if it fails, the parameters stay as they are
//     outer.apply();
//   }
//
// Local SGD (Stich, 2018): the parameters become the average over the ranks. DiLoCo (Douillard et al., 2023):
// LocalSgdOptions::outer_optimizer steps the outer parameters, which are the parameters at the end of the
// last round. The gradient of an outer parameter is the average over the ranks of (outer parameter - rank's
// parameter). Streaming DiLoCo (Douillard et al., 2025): set `fragments` and `keep`.
//
// A round has two phases, so that either all ranks or no rank applies it: in elastic training, the ranks vote
// between the phases in elastic::State::step() (docs/elastic.md). A LocalSgd holds two more copies of the
// parameters. At the start, the parameters must be equal on all ranks. Not thread-safe.
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

// Creates the outer optimizer over these parameters.
using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>;
// SGD with Nesterov's momentum, as DiLoCo's authors use it.
WEFT_EXPORT MakeOptimizer nesterov(double learning_rate = 0.7, double momentum = 0.9);

struct LocalSgdOptions {
  std::int64_t interval = 100;         // inner steps from one round to the next
  MakeOptimizer outer_optimizer = {};  // of the outer parameters; empty: parameters are averaged
  // The parameters are divided into this number of fragments. Each round combines one fragment, in turn, so
  // that it sends less. A fragment is combined every `interval` x `fragments` steps.
  std::size_t fragments = 1;
  // apply() sets the parameters to keep * (this rank's parameters) + (1 - keep) * (outer parameters). Set a
  // value above 0 if inner steps run between reduce() and apply(), so that these steps are not lost entirely.
  double keep = 0;
};

class WEFT_EXPORT LocalSgd {
 public:
  // parameters: of floating-point type. invalid_argument: no parameters, interval < 1, fragments < 1, more
  // fragments than parameters, or keep outside [0, 1).
  LocalSgd(std::vector<at::Tensor> parameters, LocalSgdOptions options);
  LocalSgd(const LocalSgd&) = delete;
  LocalSgd& operator=(const LocalSgd&) = delete;

  // Counts an inner step. Returns whether a round is due.
  bool step() { return ++steps_ >= options_.interval; }
  // The first phase: starts to average. All ranks of the group call it. reduce() changes no parameter, so
  // after an error the program can call reduce() again, with another group. Inner steps may run before the
  // future completes.
  [[nodiscard]] rpc::Future<void> reduce(const collectives::Group& group);
  // The second phase: the outer step, without a collective. failed_precondition: no reduce() has completed
  // since the last apply().
  void apply();
  // Sets the parameters to the outer parameters: discards this rank's inner steps of the round.
  void reset();
  void begin_round() { steps_ = 0; }  // inner steps are counted from here

  std::int64_t steps() const { return steps_; }                                  // since the round began
  std::uint64_t rounds() const { return rounds_; }                               // applied rounds
  void set_rounds(std::uint64_t rounds) { rounds_ = rounds; }                    // from a checkpoint
  const std::vector<at::Tensor>& outer_parameters() const { return outer_; }     // the same on all ranks
  torch::optim::Optimizer* outer_optimizer() const { return optimizer_.get(); }  // null: none

  // The state is the outer parameters, the state of the outer optimizer and the number of rounds. Call these
  // between rounds. load() does not change the parameters.
  void save(torch::serialize::OutputArchive& archive) const;
  void load(torch::serialize::InputArchive& archive);

 private:
  struct Range {
    std::size_t begin = 0, end = 0;
  };
  Range due() const;  // the parameters that this round combines

  const LocalSgdOptions options_;
  const std::vector<at::Tensor> parameters_;
  std::vector<Range> fragments_;
  std::vector<at::Tensor> outer_, sums_;  // sums_: the tensors that reduce() averages
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  bool reducing_ = false;  // true from reduce() to apply()
  std::shared_ptr<std::atomic<bool>> reduced_ = std::make_shared<std::atomic<bool>>(false);
  std::int64_t steps_ = 0;
  std::uint64_t rounds_ = 0;
};

}  // namespace weft::data_parallel
