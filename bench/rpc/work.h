// Work: the task of each case of this bench, and the peers, one file each. bench/README.md
// describes the cases. Thread-safety: values.
#pragma once

#include "bench/harness/pair.h"

#include <optional>

namespace weft::bench {

enum class Kind {
  tiny,          // one call at a time, in the fastest way of the peer
  get,           // one call at a time, the calling thread waits
  small_tensor,  // one call at a time, with 4 floats in each direction
  throughput,    // 64 calls at a time over one connection
  bulk,          // one call at a time, with a tensor to the callee
  echo,          // one call at a time, with a tensor in each direction
  self,          // calls of an agent to itself
  growth,        // 64 calls at a time from each of several peers
  idle,          // idle connections that have been used once
  allocations,   // tiny calls, and their allocations by malloc
  flow,          // like bulk, and tiny calls at the same time, between hosts with a limit for each connection
};
// Whether the work needs only one server and one client over one connection, which every peer supports.
inline constexpr bool is_plain(Kind kind) { return kind <= Kind::echo; }
enum class Wire {
  tcp,
  unix_socket,
  shared_memory,
  same_host,  // the transport that the peer uses for tensors between processes of one host
};
enum class Wait { blocking, spinning };  // what a thread without work does, on both sides

struct Work {
  std::string name;
  Kind kind;
  Wire wire = Wire::tcp;
  Wait wait = Wait::blocking;
  std::size_t bytes = 0;  // the size of the tensor
  std::size_t peers = 1;  // in growth: callers; in idle: connections
  std::size_t lanes = 0;  // weft's lanes over TCP
  bool defaults = false;  // weft spins by its default options, and `wait` is ignored
};

inline constexpr std::size_t in_flight = 64;
inline constexpr std::size_t small_elements = 4;
// The time for which a thread spins before it blocks, if it may do both.
inline constexpr auto spin_bound = std::chrono::microseconds{50};

// The sizes of weft's messages. The peers that send bare bytes send the same number of bytes: a head in each
// direction, each followed by a tensor.
struct Shape {
  std::size_t request, reply;       // heads
  std::size_t there = 0, back = 0;  // tensors
};
inline constexpr Shape shape_of(const Work& work) {
  switch (work.kind) {
    case Kind::small_tensor:  // small tensors travel in the heads
      return {.request = 328, .reply = 304};
    case Kind::bulk:
      return {.request = 320, .reply = 120, .there = work.bytes};
    case Kind::echo:
      return {.request = 320, .reply = 296, .there = work.bytes, .back = work.bytes};
    default:
      return {.request = 144, .reply = 120};
  }
}

inline Notes notes_of(Wait wait, std::string caller) {
  return {{"wait", wait == Wait::spinning ? "spinning" : "blocking"}, {"caller", std::move(caller)}};
}

// The path of a program in the same folder of the build tree.
std::string program_path(const std::string& name);

// Each function returns nullopt if the work does not apply to the peer.
using MakeContender = std::optional<Contender> (*)(const Work&);
std::optional<Contender> weft_peer(const Work& work);
std::optional<Contender> weft_reference_peer(const Work& work);  // the reference for some cases of weft
std::optional<Contender> weft_lanes_peer(const Work& work);      // large tensors over TCP on two lanes
std::optional<Contender> weft_4_lanes_peer(const Work& work);    // the same on four lanes, between hosts
std::optional<Contender> weft_idle_peer(const Work& work);
std::optional<Contender> weft_allocs_peer(const Work& work);
std::optional<Contender> raw_peer(const Work& work);
std::optional<Contender> raw_fresh_peer(const Work& work);   // like raw, into memory that was never touched
std::optional<Contender> raw_memory_peer(const Work& work);  // raw, through shared memory
std::optional<Contender> raw_copy_peer(const Work& work);    // raw, tensors between processes of one host
std::optional<Contender> asio_peer(const Work& work);
std::optional<Contender> grpc_peer(const Work& work);
std::optional<Contender> capnp_peer(const Work& work);
std::optional<Contender> torch_peer(
    const Work& work);  // with the transports that PyTorch chooses, here shared memory
std::optional<Contender> torch_uv_peer(const Work& work);  // TCP only
std::optional<Contender> torch_python_peer(const Work& work);

}  // namespace weft::bench
