#include "bench/spin/agents.h"

#include "bench/rpc/echo_calls.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <thread>

namespace weft::bench {
namespace {

std::int64_t echo_on_pool(std::int64_t x) { return x; }
using EchoOnPool = rpc::Function<"bench.echo_on_pool", &echo_on_pool>;

rpc::AgentOptions options_of(const std::string& name, Wire wire, Spin spin) {
  rpc::AgentOptions options{.name = name};
  options.spin = spin;
  options.same_host = wire == Wire::installed;
  options.handler_threads = 1;
  return options;
}

}  // namespace

std::unique_ptr<rpc::Agent> make_server(const std::string& name, Wire wire, Spin spin) {
  rpc::AgentOptions options = options_of(name, wire, spin);
  const auto path =
      std::filesystem::temp_directory_path() / ("weft_bench_" + std::to_string(getpid()) + ".sock");
  options.listen = {wire == Wire::unix_socket ? "unix://" + path.string() : "tcp://127.0.0.1:0"};
  auto agent = std::make_unique<rpc::Agent>(options);
  agent->serve<Echo>();
  agent->serve<EchoOnPool>();
  return agent;
}

std::unique_ptr<rpc::Agent> make_client(const std::string& name, Wire wire, Spin spin) {
  return std::make_unique<rpc::Agent>(options_of(name, wire, spin));
}

Figures measure_latency(const rpc::Peer& peer, const Budget& budget) {
  return call_one_by_one(peer, budget).start(*peer.calls().route()->loop()).get();
}

Figures measure_latency_of_threads(const rpc::Peer& peer, const Budget& budget) {
  return get_one_by_one<EchoOnPool>(peer, budget);
}

Figures measure_limited_rate(const rpc::Peer& peer, double calls_per_s, const Budget& budget) {
  constexpr std::size_t batch = 8;
  const auto period = std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(static_cast<double>(batch) / calls_per_s));
  RateMeter meter(budget);
  auto next = std::chrono::steady_clock::now();
  do {
    std::this_thread::sleep_until(next);
    next = std::max(next + period, std::chrono::steady_clock::now() - period);
    call_times(peer, batch).start(*peer.calls().route()->loop()).get();
  } while (meter.count(batch));
  return meter.calls();
}

Figures measure_rate(const std::vector<rpc::Peer>& peers, std::size_t in_flight, const Budget& budget) {
  rpc::Executor& loop = *peers.front().calls().route()->loop();
  return call_many(peers, in_flight, budget, &loop).start(loop).get();
}

}  // namespace weft::bench
