// Work: what each case of this bench asks of a peer, and the peers, one file each. docs/benchmarks.md says
// what each does. Thread-safety: values.
#pragma once

#include "bench/harness/pair.h"

#include <optional>

namespace weft::bench {

enum class Kind {
  tiny,        // one call at a time, made the way that the peer answers fastest
  get,         // one call at a time, the calling thread waits
  throughput,  // 64 calls at a time over one connection
  bulk,        // one call at a time, with a tensor to the callee
};
enum class Wire { tcp, unix_socket };

struct Work {
  std::string name;
  Kind kind;
  Wire wire = Wire::tcp;
  std::size_t bytes = 0;  // of the tensor
};

inline constexpr std::size_t in_flight = 64;

// What weft sends for int64 echo(int64), so that the peers that send bare bytes send as many.
inline constexpr std::size_t request_bytes = 144;
inline constexpr std::size_t reply_bytes = 120;

// A path that a listener or a store may use, of this process alone. Whoever uses it removes it.
std::string scratch_path(const std::string& suffix);

// Each gives nothing where the work does not concern that peer.
using MakeContender = std::optional<Contender> (*)(const Work&);
std::optional<Contender> weft_peer(const Work& work);
std::optional<Contender> raw_peer(const Work& work);
std::optional<Contender> raw_fresh_peer(const Work& work);  // like raw, into memory that was never touched
std::optional<Contender> asio_peer(const Work& work);
std::optional<Contender> torch_peer(
    const Work& work);  // with the transports that it chooses: shared memory here
std::optional<Contender> torch_uv_peer(const Work& work);  // TCP only

}  // namespace weft::bench
