// StandingMessage: sent by each rank to the others at the beginning of a generation (State::sync()).
#pragma once

#include <weft/rpc/codec/struct_codec.h>

#include <cstdint>
#include <string>
#include <vector>

namespace weft::elastic::detail {

struct StandingMessage {
  bool synced = false;
  std::uint64_t commits = 0;
  bool sends_later = false;
  std::uint64_t began = 0, committed = 0, entered = 0;
  std::vector<std::string> parts = {};  // names and kinds
};
WEFT_CODEC(StandingMessage, synced, commits, sends_later, began, committed, entered, parts)

}  // namespace weft::elastic::detail
