// StandingMessage: what a rank tells the others at the beginning of a generation. StateAccess: what run()
// does with a State that programs do not.
#pragma once

#include <weft/parallel/elastic/state.h>
#include <weft/rpc/codec/struct_codec.h>

namespace weft::elastic::detail {

struct StandingMessage {
  bool synced = false;
  std::uint64_t commits = 0;
  std::vector<std::string> parts = {};  // names and kinds
};
WEFT_CODEC(StandingMessage, synced, commits, parts)

class StateAccess {
 public:
  explicit StateAccess(State& state) : state_(state) {}
  // The state before the first commit can be restored too. What it was given in an earlier job counts no
  // more.
  void begin() {
    state_.stage(state_.commits());
    state_.copy();
    state_.standing_.synced = false;
  }
  void end() {  // leave() before run() counts too, and only once
    set_changes(nullptr);
    state_.leaving_ = false;
  }
  // Without a function the generation has ended.
  void set_changes(std::function<bool()> changes) {
    state_.changes_ = std::move(changes);
    if (!state_.changes_) state_.group_.reset();
  }
  // Other workers train without this one, which is a new one from now on.
  void fall_behind() { state_.standing_.synced = false; }
  bool leaving() const { return state_.leaving_; }

 private:
  State& state_;
};

}  // namespace weft::elastic::detail
