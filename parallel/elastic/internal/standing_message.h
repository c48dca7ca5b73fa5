// StandingMessage: what a rank tells the others at the beginning of a generation. StateAccess: what run()
// does with a State that programs do not.
#pragma once

#include <weft/parallel/elastic/state.h>
#include <weft/rpc/codec/struct_codec.h>

namespace weft::elastic::detail {

struct StandingMessage {
  bool synced = false;
  std::uint64_t commits = 0;
  bool sends_later = false;
  std::uint64_t began = 0, committed = 0, entered = 0;
  std::vector<std::string> parts = {};  // names and kinds
};
WEFT_CODEC(StandingMessage, synced, commits, sends_later, began, committed, entered, parts)

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
    state_.receives_commits_.reset();
    state_.stage(state_.commits());
    state_.copy();
    state_.standing_ = {.commits = state_.commits()};
  }
  void begin_generation(std::uint64_t number) { state_.generation_ = number; }
  void abort(const std::string& reason) {  // of a generation
    for (const State::Part& part : state_.parts_) part.part->abort(reason);
  }
  void end() {  // leave() before run() counts too, and only once
    set_votes(nullptr);
    state_.leaving_ = false;
  }
  // Without a function the generation has ended.
  void set_votes(std::function<Vote(Vote)> votes) {
    state_.votes_ = std::move(votes);
    if (!state_.votes_) state_.group_.reset();
  }
  // The body has returned: what is still in transit arrives.
  void end_body() { state_.end_body(); }
  // After a failure: back to the last applied step or commit.
  void recover() { state_.recover(); }
  bool leaving() const { return state_.leaving_; }

 private:
  State& state_;
};

}  // namespace weft::elastic::detail
