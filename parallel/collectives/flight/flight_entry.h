// FlightEntry: one operation of a group on one rank, as its flight recorder recorded it.
//
// Times are nanoseconds since 1970 by the host's clock: times of several hosts are comparable only as far as
// their clocks agree. 0: the operation has not reached this state. A value.
#pragma once

#include <weft/rpc/core/export.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace weft::collectives {

// The text of a receive that accepts a tensor of any dtype and shape.
inline constexpr std::string_view any_tensor = "any tensor";

// The kind of an operation: a collective of tensors, a round of values, or one side of a message.
enum class FlightKind : std::uint8_t {
  collective,
  values,  // a round in which ranks exchange values other than tensors
  send,
  recv,
};
// The progress of an operation. It may skip `moving`.
enum class FlightState : std::uint8_t {
  begun,   // this rank has started it; it is unknown whether other ranks have
  moving,  // all ranks have started it: data moves
  done,
  failed,
};

WEFT_EXPORT std::string_view name_of(FlightKind kind);    // "collective", …
WEFT_EXPORT std::string_view name_of(FlightState state);  // "begun", …

struct WEFT_EXPORT FlightEntry {
  FlightKind kind = FlightKind::collective;
  FlightState state = FlightState::begun;
  std::uint64_t number = 0;  // counts all operations of this rank in the group, in the order of their start
  // Of a collective or a round of values: operations of several ranks with the same number belong together.
  std::uint64_t sequence = 0;
  std::string text;  // "all_reduce(sum, float32[4, 8])"; for a message its type, "float32[4]"
  std::string site;  // "train.cc:12"
  std::uint64_t bytes = 0;
  int peer = -1;  // for a message: the other rank; -1: any
  std::uint64_t tag = 0;
  std::int64_t begun = 0, moved = 0, ended = 0;
  std::string error;           // the reason of a failure
  std::vector<int> waits_for;  // ranks whose data had not arrived

  // is_open(): not done. A failed operation counts as open: when a group fails, the operations that are in
  // flight fail with it.
  bool is_message() const { return kind == FlightKind::send || kind == FlightKind::recv; }
  bool is_open() const { return state != FlightState::done; }
  // "#17 all_reduce(sum, float32[4, 8])", "values #3 all_gather_object(string)",
  // "send(float32[4], to 2, tag 7)"
  std::string what() const;

  std::string what_and_where() const;  // the same, followed by " at train.cc:12"
};

}  // namespace weft::collectives
