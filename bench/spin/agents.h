// The agents that `bench spin` measures. They serve one method, and their callers are coroutines on a loop.
// Thread-safety: none; a process creates its agents after it was forked.
#pragma once

#include "bench/harness/meter.h"

#include <weft/rpc/rpc.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace weft::bench {

using Spin = std::optional<std::chrono::nanoseconds>;  // as in AgentOptions

enum class Wire {
  installed,    // a TCP address; agents of one host connect through shared memory
  tcp,          // TCP only
  unix_socket,  // a Unix socket only
};

// Creates an agent that listens and serves echo.
std::unique_ptr<rpc::Agent> make_server(const std::string& name, Wire wire, Spin spin);
std::unique_ptr<rpc::Agent> make_client(const std::string& name, Wire wire, Spin spin);

// One call at a time: a coroutine on the loop calls a handler that runs on the loop.
Figures measure_latency(const rpc::Peer& peer, const Budget& budget);
// One call at a time: a thread that waits in get() calls a handler that runs on a handler thread.
Figures measure_latency_of_threads(const rpc::Peer& peer, const Budget& budget);
// One call at a time, at most calls_per_s: 8 calls, then a pause.
Figures measure_limited_rate(const rpc::Peer& peer, double calls_per_s, const Budget& budget);
// in_flight calls at a time to each peer.
Figures measure_rate(const std::vector<rpc::Peer>& peers, std::size_t in_flight, const Budget& budget);

}  // namespace weft::bench
