// GroupOptions: the options of a process group (group.h).
//
// Group::create() fails unless name, members, wire_dtype, bounds and checks are equal on all members. The
// other options may differ between members. A value.
#pragma once

#include <weft/parallel/collectives/plan/bounds.h>

#include <c10/core/ScalarType.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace weft::collectives {

// How the members of a group access each other's tensors.
enum class GroupBackend : std::uint8_t {
  messages,
  memory,  // memory that all members share
  hosts,   // shared memory within each host, messages between hosts
};

// What a group requires of the tensors of an operation.
enum class Checks : std::uint8_t {
  strict,
  // Also accepts, as PyTorch's process groups do:
  // - tensors with equal numbers of elements but other shapes, on different ranks or on the two sides of a
  //   message;
  // - an input and an output that overlap otherwise than in place: one of the two is copied;
  // - several dtypes in the lists of all_reduce, broadcast, all_gather and reduce_scatter. The group then
  //   runs one collective for each dtype, in the order in which the dtypes occur in the list, and ends if one
  //   of these collectives fails.
  relaxed,
};

struct GroupOptions {
  std::string name = "world";        // several groups may have one name
  std::vector<std::string> members;  // by rank; empty: all members of a fixed world, by their ranks
  // The timeout of the rendezvous in create(), and the default timeout of collectives. It starts when this
  // member calls the operation.
  std::chrono::nanoseconds timeout = std::chrono::minutes{10};
  // If a rank has not begun a collective this long after another one, and has begun no other collective and
  // received no message in the second half of this time, or has not sent or received a message, the group
  // fails with deadline_exceeded, which names the rank. Unlike `timeout`, it does not limit the time of the
  // transfer in a collective. It does not apply to calls that state a timeout. 0: no such limit.
  std::chrono::nanoseconds late_after = std::chrono::nanoseconds{0};
  // If a collective has waited for this time for other ranks, a warning is logged that names it and the
  // ranks. 0: never.
  std::chrono::nanoseconds stall_warning = std::chrono::seconds{30};
  // float16 or bfloat16: the type in which all_reduce sends float32 tensors, except small ones
  // (plan/choice.h). This halves the bytes that are sent. Each rank rounds once, so results have the
  // precision of that type; they have the same bits on all ranks. No effect on ranks that share memory, or on
  // other dtypes than float32.
  std::optional<c10::ScalarType> wire_dtype = {};
  Bounds bounds = {};  // the sizes at which collectives by messages change the algorithm
  Checks checks = Checks::strict;
  // shared_memory: whether members on one host and of one user use shared memory. shared_bytes: the size of
  // each member's range of addresses for tensors of empty(); only used pages need memory. A member shares
  // memory only with members that have the same shared_bytes.
  bool shared_memory = true;
  std::size_t shared_bytes = std::size_t{16} << 30;
  // A name for a part of the machine, for example one of its sockets: members with different names count as
  // members of different hosts. If members are on several hosts, and at least two of them on one, the members
  // of a host use shared memory, and the hosts exchange messages (GroupBackend::hosts).
  std::string host = {};
  // A folder into which each member writes its latest operations and its waits when the group fails; `weft
  // flight FOLDER` analyses the files. Empty: $WEFT_FLIGHT_RECORDER_DIR; if the variable is not set, nothing
  // is written.
  std::filesystem::path flight_recorder_dir = {};
  // Limits of the data that this member keeps for collectives that other members have started and this one
  // has not. If a limit is exceeded, the group fails with resource_exhausted.
  std::size_t max_early_messages = 64 << 10;
  std::size_t max_early_bytes = std::size_t{1} << 30;
};

}  // namespace weft::collectives
