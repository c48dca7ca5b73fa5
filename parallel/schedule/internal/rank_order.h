// RankOrder: builds the list of one rank for a generator.
//
// It counts the micro-batches of each stage and computation, so that a generator only states which stage
// computes next. Computations of micro-batches after the last one are dropped, so a generator may write a
// pattern for more micro-batches than there are. The remaining order is valid, since micro-batches do not
// wait for each other. Not thread-safe.
#pragma once

#include <weft/parallel/schedule/generators.h>

#include <array>
#include <map>
#include <utility>
#include <vector>

namespace weft::schedule {

class RankOrder {
 public:
  explicit RankOrder(int microbatches) : microbatches_(microbatches) {}

  void forward(int stage) { add(next(Op::forward, stage)); }
  void input_gradient(int stage) { add(next(Op::input_gradient, stage)); }
  void weight_gradient(int stage) { add(next(Op::weight_gradient, stage)); }
  void backward(int stage) {
    const Action action = next(Op::input_gradient, stage);
    ++counts_[{Op::weight_gradient, stage}];
    add({.op = Op::backward, .stage = stage, .microbatch = action.microbatch});
  }
  // The forward of one stage together with the backward of another.
  void overlap(int forward_stage, int backward_stage) {
    const std::size_t before = actions_.size();
    forward(forward_stage);
    backward(backward_stage);
    if (actions_.size() != before + 2) return;
    Action pair{.op = Op::overlap, .parts = {actions_[before], actions_[before + 1]}};
    actions_.resize(before);
    actions_.push_back(std::move(pair));
  }

  int count(Op op, int stage) const {
    const auto known = counts_.find({op, stage});
    return known == counts_.end() ? 0 : known->second;
  }
  std::vector<Action> take() { return std::move(actions_); }

 private:
  Action next(Op op, int stage) { return {.op = op, .stage = stage, .microbatch = counts_[{op, stage}]++}; }
  void add(Action action) {
    if (action.microbatch < microbatches_) actions_.push_back(std::move(action));
  }

  int microbatches_;
  std::map<std::pair<Op, int>, int> counts_;
  std::vector<Action> actions_;
};

// A schedule of the shape without actions. invalid_argument, which begins with the name: a size is below 1,
// or chunks is neither 0 nor within the bounds (max_chunks 0: no maximum).
Schedule empty_schedule(std::string_view name, const Shape& shape, int min_chunks, int max_chunks);

}  // namespace weft::schedule
