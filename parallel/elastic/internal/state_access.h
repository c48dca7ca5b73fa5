// StateAccess: the functions of a State that run() calls, and programs do not.
#pragma once

#include <weft/parallel/elastic/state.h>

#include <algorithm>
#include <functional>
#include <utility>

namespace weft::elastic::detail {

class StateAccess {
 public:
  explicit StateAccess(State& state) : state_(state) {}
  // The state before the first commit can be restored too. Commits of an earlier run() do not count as
  // synchronized.
  void begin(bool sends_later) {
    state_.sends_later_ = sends_later;
    state_.generation_ = 0;
    state_.group_.reset();
    state_.in_transit_.clear();
    state_.transit_group_.reset();
    state_.receives_commits_.reset();
    state_.stage(state_.commits());
    state_.copy();
    state_.standing_ = {.commits = state_.commits()};
  }
  void begin_generation(std::uint64_t number) { state_.generation_ = number; }
  void end() {  // a leave() applies to one run(), also if it was called before run()
    set_votes(nullptr);
    state_.leaving_ = false;
  }
  // An empty function: the generation has ended.
  void set_votes(std::function<Vote(Vote)> votes) {
    state_.votes_ = std::move(votes);
    if (!state_.votes_) state_.group_.reset();
  }
  // Call it when the body has returned: receives the state that is still in transit.
  void end_body() { state_.end_body(); }
  // After a failure: restores the last applied step or commit.
  void recover() { state_.recover(); }
  bool leaving() const { return state_.leaving_; }
  bool has_values() const {
    const auto parts = state_.sharded_parts();
    return std::all_of(parts.begin(), parts.end(),
                       [](const ShardedPart* part) { return part->has_values(); });
  }

 private:
  State& state_;
};

}  // namespace weft::elastic::detail
