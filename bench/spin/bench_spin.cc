// ./dev bench spin: agents that adapt their spinning, compared with agents that sleep and with agents that
// spin for a fixed time. bench/README.md describes the cases.
#include "bench/harness/pair.h"
#include "bench/spin/agents.h"
#include "bench/spin/cpu_quota.h"

#include <nlohmann/json.hpp>

#include <time.h>

#include <atomic>
#include <stdexcept>
#include <thread>

namespace weft::bench {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t crowd_size = 8;
constexpr auto patience = 30s;

struct Way {
  const char* name;
  Spin spin;
};
constexpr Way ways[] = {{"adaptive", std::nullopt}, {"asleep", 0ns}, {"fixed", 50us}};

// --- Two agents ---

using Measure = Figures (*)(const rpc::Peer& peer, const Budget& budget);

void serve(const Way& way, Wire wire, ServerEnd& end) {
  const auto agent = make_server("server", wire, way.spin);
  end.announce(agent->addresses().front());
  end.wait_for_client();
}

// Reports the figures that measure(peer) returns for the server's agent.
template <class F>
void report(const Way& way, Wire wire, ClientEnd& end, F measure) {
  const auto agent = make_client("client", wire, way.spin);
  const rpc::Peer peer = agent->connect(end.address());
  peer.ready().get();
  end.report(measure(peer));
}

Figures measure_64_calls(const rpc::Peer& peer, const Budget& budget) {
  return measure_rate({peer}, 64, budget);
}

Contender pair_of(const Way& way, Wire wire, Measure measure) {
  return contender(way.name, {},
                   {.serve = [=](ServerEnd& end) { serve(way, wire, end); },
                    .measure =
                        [=](ClientEnd& end) {
                          report(way, wire, end,
                                 [&](const rpc::Peer& peer) { return measure(peer, end.budget()); });
                        }});
}

// --- Idle agents ---

double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Measures a process with one idle agent, which has used its connections before.
Contender idle(const Way& way, std::size_t connections) {
  return contender(way.name, {},
                   {.serve =
                        [=](ServerEnd& end) {
                          std::vector<std::unique_ptr<rpc::Agent>> agents;
                          std::vector<std::string> addresses;
                          for (std::size_t i = 0; i < connections; ++i) {
                            agents.push_back(make_server("server" + std::to_string(i), Wire::tcp, way.spin));
                            addresses.push_back(agents.back()->addresses().front());
                          }
                          end.announce(nlohmann::json(addresses).dump());
                          end.wait_for_client();
                        },
                    .measure =
                        [=](ClientEnd& end) {
                          const auto agent = make_client("client", Wire::tcp, way.spin);
                          for (const std::string address : nlohmann::json::parse(end.address()))
                            measure_latency(agent->connect(address), {10ms, 50ms});
                          std::this_thread::sleep_for(end.budget().warm_up);
                          const double before = processor_seconds();
                          const auto began = std::chrono::steady_clock::now();
                          std::this_thread::sleep_for(end.budget().duration);
                          const std::chrono::duration<double> time = std::chrono::steady_clock::now() - began;
                          end.report({{"cpu_percent", 100 * (processor_seconds() - before) / time.count()}});
                        }});
}

// --- Many agents ---

// Runs one process of a crowd: it serves, calls the peers, and reports its rate.
void join_crowd(Channel& channel, const Way& way, std::size_t index, std::size_t in_flight,
                const Budget& budget) {
  const auto server = make_server("agent" + std::to_string(index), Wire::tcp, way.spin);
  channel.send(server->addresses().front());
  const auto addresses = nlohmann::json::parse(channel.receive().value());
  std::vector<rpc::Peer> peers;
  for (const std::string address : addresses) {
    peers.push_back(server->connect(address));
    peers.back().ready().get();
  }
  channel.send("connected");
  channel.receive();
  channel.send(nlohmann::json(measure_rate(peers, in_flight, budget)).dump());
  channel.receive();
}

// Each agent calls the next two. All processes share the cores.
Outcome measure_crowd(const Way& way, std::size_t in_flight, const Setting& setting) {
  Outcome outcome;
  try {
    std::vector<std::unique_ptr<Process>> processes;
    for (std::size_t i = 0; i < crowd_size; ++i)
      processes.push_back(std::make_unique<Process>(
          Pins{}, 0, [&, i](Channel& channel) { join_crowd(channel, way, i, in_flight, setting.budget); }));
    std::vector<std::string> addresses;
    for (const auto& process : processes) addresses.push_back(process->expect("an agent", patience));
    for (std::size_t i = 0; i < crowd_size; ++i)
      processes[i]->channel().send(
          nlohmann::json{addresses[(i + 1) % crowd_size], addresses[(i + 2) % crowd_size]}.dump());
    for (const auto& process : processes) process->expect("an agent", patience);
    for (const auto& process : processes) process->channel().send("go");
    for (const auto& process : processes) {
      const auto figures = nlohmann::json::parse(process->expect("an agent", patience)).get<Figures>();
      outcome.figures["calls_per_s"] += figures.at("calls_per_s");
    }
    for (const auto& process : processes) process->channel().send("end");
    for (const auto& process : processes) process->end(5s);
  } catch (const std::exception& error) {
    outcome.error = error.what();
  }
  return outcome;
}

// --- Agents under a quota, and next to a computing thread ---

Contender under_quota(const Way& way, double share, std::size_t in_flight) {
  return {way.name, {}, [=](const Setting& setting) {
            try {
              const CpuQuota quota(share);
              Pair pair;
              pair.serve = [&](ServerEnd& end) {
                quota.add_this_process();
                serve(way, Wire::tcp, end);
              };
              pair.measure = [&](ClientEnd& end) {
                quota.add_this_process();
                report(way, Wire::tcp, end,
                       [&](const rpc::Peer& peer) { return measure_rate({peer}, in_flight, end.budget()); });
              };
              return measure_pair(pair, setting);
            } catch (const std::exception& error) {
              Outcome outcome;
              outcome.error = error.what();
              return outcome;
            }
          }};
}

std::uint64_t compute(std::uint64_t state) {
  for (int i = 0; i < 10'000; ++i) state = state * 6364136223846793005U + 1442695040888963407U;
  return state;
}

// The client has a thread that computes on its core. calls_per_s: the maximum rate of its calls; 0: no limit.
Figures measure_next_to_computing(const rpc::Peer& peer, double calls_per_s, const Budget& given) {
  std::atomic<std::uint64_t> blocks{0};
  std::atomic<bool> enough{false};
  std::uint64_t state = 1;
  std::thread thread([&] {
    while (!enough) state = compute(state), ++blocks;
  });
  std::this_thread::sleep_for(given.warm_up);
  const std::uint64_t before = blocks;
  const auto began = std::chrono::steady_clock::now();
  const Budget budget{0ns, given.duration};
  Figures figures =
      calls_per_s == 0 ? measure_rate({peer}, 1, budget) : measure_limited_rate(peer, calls_per_s, budget);
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - began;
  figures["blocks_per_s"] = static_cast<double>(blocks - before) / time.count();
  enough = true;
  thread.join();
  if (state == 0) throw std::runtime_error("the computation is wrong");
  return figures;
}

Contender next_to_computing(const Way& way, double calls_per_s) {
  return contender(way.name, {},
                   {.serve = [=](ServerEnd& end) { serve(way, Wire::tcp, end); },
                    .measure =
                        [=](ClientEnd& end) {
                          report(way, Wire::tcp, end, [&](const rpc::Peer& peer) {
                            return measure_next_to_computing(peer, calls_per_s, end.budget());
                          });
                        }});
}

Bench cases() {
  Bench bench{.name = "spin", .subject = "adaptive"};
  const auto add = [&](const std::string& name, const auto& make, bool with_fixed = false) {
    Case& one = bench.cases.emplace_back(Case{name, {}});
    for (const Way& way : ways)
      if (with_fixed || way.spin != Spin(50us)) one.contenders.push_back(make(way));
  };
  add("tiny/installed", [](const Way& way) { return pair_of(way, Wire::installed, &measure_latency); }, true);
  add("tiny/tcp", [](const Way& way) { return pair_of(way, Wire::tcp, &measure_latency); }, true);
  add("tiny/unix", [](const Way& way) { return pair_of(way, Wire::unix_socket, &measure_latency); }, true);
  add(
      "threads/tcp", [](const Way& way) { return pair_of(way, Wire::tcp, &measure_latency_of_threads); },
      true);
  add("throughput64/tcp", [](const Way& way) { return pair_of(way, Wire::tcp, &measure_64_calls); });
  add("idle/0", [](const Way& way) { return idle(way, 0); });
  add("idle/4", [](const Way& way) { return idle(way, 4); });
  for (const std::size_t in_flight : {1, 16})
    add("crowd/8x" + std::to_string(in_flight), [=](const Way& way) {
      return Contender{
          way.name, {}, [=](const Setting& setting) { return measure_crowd(way, in_flight, setting); }};
    });
  add("quota/50/1", [](const Way& way) { return under_quota(way, 0.5, 1); });
  add("quota/50/64", [](const Way& way) { return under_quota(way, 0.5, 64); });
  add("computing/4000", [](const Way& way) { return next_to_computing(way, 4000); });
  add("computing/all", [](const Way& way) { return next_to_computing(way, 0); });
  return bench;
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) { return weft::bench::run_bench(argc, argv, weft::bench::cases()); }
