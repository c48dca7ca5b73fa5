// PlanMachine: executes the plans of all ranks in one thread, in any order that the plans permit.
//
// Elements are numbers, reduced with `combine`. The bytes of a message are read some time after its step
// started. Each event is drawn at random. A step that does not wait for its dependencies causes a wrong
// result for some seed. With `one_memory` the three places of a rank are the same memory. The rank `absent`
// executes nothing.
#pragma once

#include <weft/parallel/collectives/plan/internal/plan.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <tuple>
#include <vector>

namespace weft::collectives::testing {

using Numbers = std::vector<std::uint64_t>;
using Combine = std::function<std::uint64_t(std::uint64_t left, std::uint64_t right)>;

class PlanMachine {
 public:
  PlanMachine(std::vector<Plan> plans, bool one_memory, Combine combine, int absent = -1)
      : plans_(std::move(plans)),
        one_memory_(one_memory),
        combine_(std::move(combine)),
        ranks_(plans_.size()) {
    for (std::size_t rank = 0; rank < plans_.size(); ++rank) {
      if (static_cast<int>(rank) == absent) continue;
      Rank& state = ranks_[rank];
      const std::size_t steps = state.left = plans_[rank].steps.size();
      state.waits_for.resize(steps);
      state.dependents.resize(steps);
      state.accumulator.assign(plans_[rank].accumulator, unset);
      for (std::uint32_t step = 0; step < steps; ++step) {
        for (const std::uint32_t earlier : plans_[rank].steps[step].after) {
          EXPECT_LT(earlier, step);
          state.dependents[earlier].push_back(step);
        }
        state.waits_for[step] = plans_[rank].steps[step].after.size();
        if (state.waits_for[step] == 0) begun(rank, step);
      }
    }
  }

  void give(std::size_t rank, Numbers input, std::size_t output_size) {
    ranks_[rank].input = std::move(input);
    ranks_[rank].output.assign(output_size, unset);
  }

  // Runs to the end. Returns false if some step never gets its inputs.
  bool run(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    while (!ready_.empty()) {
      std::swap(ready_[random() % ready_.size()], ready_.back());
      const auto [rank, step] = ready_.back();
      ready_.pop_back();
      end(rank, step);
      --ranks_[rank].left;
    }
    return messages_.empty() &&
           std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.left == 0; });
  }
  bool ended(std::size_t rank) const { return ranks_[rank].left == 0; }

  const Numbers& output(std::size_t rank) { return place(rank, Place::output); }

  static constexpr std::uint64_t unset = 0xdeadbeef;

 private:
  struct Rank {
    Numbers input, accumulator, output;
    std::size_t left = 0;  // steps
    std::vector<std::size_t> waits_for;
    std::vector<std::vector<std::uint32_t>> dependents;
  };
  using Letter = std::tuple<std::size_t, std::size_t, std::uint32_t>;  // from, to, label

  Numbers& place(std::size_t rank, Place which) {
    Rank& state = ranks_[rank];
    if (one_memory_ || which == Place::input) return state.input;
    return which == Place::output ? state.output : state.accumulator;
  }

  bool takes(const Step& step) const {
    return step.kind == Step::Kind::receive || step.kind == Step::Kind::reduce;
  }

  void begun(std::size_t rank, std::uint32_t index) {
    const Step& step = plans_[rank].steps[index];
    if (takes(step)) {
      const Letter letter{step.peer, rank, step.label};
      if (!messages_.contains(letter)) {
        waiting_[letter] = index;
        return;
      }
    }
    ready_.emplace_back(rank, index);
  }

  void end(std::size_t rank, std::uint32_t index) {
    const Step& step = plans_[rank].steps[index];
    if (step.kind == Step::Kind::send) {
      const auto& from = place(rank, step.place);
      const Letter letter{rank, step.peer, step.label};
      EXPECT_TRUE(
          messages_.emplace(letter, Numbers(from.begin() + step.range.begin, from.begin() + step.range.end))
              .second);
      if (const auto waiter = waiting_.find(letter); waiter != waiting_.end()) {
        ready_.emplace_back(step.peer, waiter->second);
        waiting_.erase(waiter);
      }
    } else if (takes(step)) {
      const auto found = messages_.find(Letter{step.peer, rank, step.label});
      const Numbers message = std::move(found->second);
      messages_.erase(found);
      ASSERT_EQ(message.size(), step.range.size());
      for (std::size_t i = 0; i < message.size(); ++i) {
        if (step.kind == Step::Kind::receive) {
          place(rank, step.place)[step.range.begin + i] = message[i];
          continue;
        }
        const std::uint64_t own = place(rank, step.place)[step.source + i];
        const bool theirs_first = step.peer < static_cast<int>(rank);
        place(rank, Place::accumulator)[step.range.begin + i] =
            theirs_first ? combine_(message[i], own) : combine_(own, message[i]);
      }
    } else {
      const Numbers& from = place(rank, step.kind == Step::Kind::finish ? Place::accumulator : Place::input);
      const Numbers copied(from.begin() + step.source, from.begin() + step.source + step.range.size());
      std::copy(copied.begin(), copied.end(), place(rank, step.place).begin() + step.range.begin);
    }
    for (const std::uint32_t dependent : ranks_[rank].dependents[index]) {
      if (--ranks_[rank].waits_for[dependent] == 0) begun(rank, dependent);
    }
  }

  const std::vector<Plan> plans_;
  const bool one_memory_;
  const Combine combine_;
  std::vector<Rank> ranks_;
  std::vector<std::pair<std::size_t, std::uint32_t>> ready_;
  std::map<Letter, Numbers> messages_;
  std::map<Letter, std::uint32_t> waiting_;
};

}  // namespace weft::collectives::testing
