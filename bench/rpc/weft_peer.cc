// weft itself: agents, typed calls.
#include "bench/harness/hosts.h"
#include "bench/rpc/echo_calls.h"
#include "bench/rpc/work.h"

#include <weft/rpc/rpc.h>
#include <weft/rpc/tensor/layers.h>
#include <weft/rpc/tensor/tensor_codec.h>

#include <ATen/ATen.h>
#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>

#include <thread>

namespace weft::bench {
namespace {

constexpr const char* flow_rate = "200mbit";

std::int64_t take(at::Tensor tensor) { return tensor.numel(); }
using Take = rpc::Function<"bench.take", &take, rpc::non_blocking>;

at::Tensor echo_tensor(at::Tensor tensor) { return tensor; }
using EchoTensor = rpc::Function<"bench.echo_tensor", &echo_tensor, rpc::non_blocking>;

rpc::AgentOptions with_features(rpc::AgentOptions options, const Work& work) {
  if (!work.defaults) options.spin = work.wait == Wait::spinning ? spin_bound : std::chrono::nanoseconds{0};
  options.same_host = work.wire == Wire::same_host;  // a TCP connection is not replaced by shared memory
  options.lanes = work.lanes;
  options.insecure = work.kind == Kind::flow;
  return options;
}

std::string listen_address(const Work& work) {
  if (work.kind == Kind::flow) return "tcp://" + Hosts::address(0) + ":0";
  switch (work.wire) {
    case Wire::shared_memory:
      return "shm://" + scratch_path(".sock");
    case Wire::unix_socket:
      return "unix://" + scratch_path(".sock");
    default:  // agents of one host switch to shared memory by themselves
      return "tcp://127.0.0.1:0";
  }
}

// The layers of a typical program: a service makes small calls, and a training program sends tensors.
rpc::Layers layers(const Work& work) {
  const bool tensors = work.kind == Kind::bulk || work.kind == Kind::flow || work.kind == Kind::echo ||
                       work.kind == Kind::small_tensor;
  return tensors ? tensor::layers() : rpc::Layers{};
}

// --- Callers. ---

rpc::Task<Figures> send_tensors(rpc::Peer peer, Budget budget, std::size_t bytes) {
  const at::Tensor tensor = at::ones({static_cast<std::int64_t>(bytes / sizeof(float))});
  RateMeter meter(budget);
  do {
    const std::int64_t answer = co_await peer.call<Take>(tensor);
    expect_answer(answer == tensor.numel());
  } while (meter.count(1));
  co_return meter.bandwidth(bytes);
}

rpc::Task<Figures> echo_tensors(rpc::Peer peer, Budget budget, std::int64_t elements) {
  const at::Tensor tensor = at::ones({elements});
  LatencyMeter meter(budget);
  bool more = true;
  while (more) {
    meter.begin();
    const at::Tensor answer = co_await peer.call<EchoTensor>(tensor);
    more = meter.end();
    expect_answer(answer.numel() == elements && answer.const_data_ptr<float>()[elements - 1] == 1);
  }
  co_return meter.figures();
}

Figures figures(const Work& work, const rpc::Peer& peer, const Budget& budget) {
  if (work.kind == Kind::get) return get_one_by_one(peer, budget);
  rpc::Executor& loop = *peer.calls().route()->loop();
  switch (work.kind) {
    case Kind::throughput:
      return call_many({peer}, in_flight, budget, &loop).start(loop).get();
    case Kind::bulk:
      return send_tensors(peer, budget, work.bytes).start(loop).get();
    case Kind::flow: {
      auto tensors = send_tensors(peer, budget, work.bytes).start(loop);
      Figures both = call_one_by_one(peer, budget).start(loop).get();
      both.merge(std::move(tensors).get());
      return both;
    }
    case Kind::small_tensor:
      return echo_tensors(peer, budget, small_elements).start(loop).get();
    case Kind::echo:
      return echo_tensors(peer, budget, static_cast<std::int64_t>(work.bytes / sizeof(float)))
          .start(loop)
          .get();
    case Kind::self: {
      Figures both = call_one_by_one(peer, budget).start(loop).get();
      both.merge(call_many({peer}, in_flight, budget, &loop).start(loop).get());
      return both;
    }
    default:
      return call_one_by_one(peer, budget).start(loop).get();
  }
}

// --- Processes. ---

void serve(const Work& work, ServerEnd& end) {
  rpc::Agent agent(with_features(rpc::AgentOptions{.name = "server", .listen = {listen_address(work)}}, work),
                   layers(work));
  agent.serve<Echo>();
  agent.serve<Take>();
  agent.serve<EchoTensor>();
  end.announce(agent.addresses().front());
  end.wait_for_client();
}

void measure(const Work& work, ClientEnd& end) {
  rpc::Agent agent(with_features(rpc::AgentOptions{.name = "client"}, work), layers(work));
  const bool self = work.kind == Kind::self;
  if (self) agent.serve<Echo>();
  const rpc::Peer peer = agent.peer(self ? agent.name() : end.address());
  peer.ready().get();
  end.report(figures(work, peer, end.budget()));
}

// Separate agents that share one loop, so that only the cost of a peer grows with the number of peers.
void measure_growth(const Work& work, ClientEnd& end) {
  asio::io_context context{1};
  auto busy = asio::make_work_guard(context);
  std::thread thread([&] { context.run(); });
  std::vector<std::unique_ptr<rpc::Agent>> agents;
  std::vector<rpc::Peer> peers;
  std::exception_ptr failure;
  try {
    for (std::size_t i = 0; i < work.peers; ++i) {
      agents.push_back(std::make_unique<rpc::Agent>(
          context, with_features(
                       rpc::AgentOptions{.name = "client" + std::to_string(i), .handler_threads = 1}, work)));
      peers.push_back(agents.back()->connect(end.address()));
      peers.back().ready().get();
    }
    rpc::Executor& loop = *peers.front().calls().route()->loop();
    end.report(call_many(peers, in_flight, end.budget(), &loop).start(loop).get());
  } catch (...) {
    failure = std::current_exception();
  }
  busy.reset();
  context.stop();
  thread.join();  // joined before the agents are destroyed, because their loop has stopped
  if (failure) std::rethrow_exception(failure);
}

std::optional<Contender> make(const char* peer, const Work& work) {
  if (work.kind == Kind::idle || work.kind == Kind::allocations) return std::nullopt;
  const std::string caller = work.kind == Kind::get ? "get() on main" : "coroutine on the loop";
  const bool growth = work.kind == Kind::growth;
  if (work.kind == Kind::flow)
    return Contender{peer, notes_of(work.wait, caller), [work](const Setting& setting) {
                       const Hosts hosts(2, flow_rate, Hosts::Limit::flow);
                       return measure_pair({.serve =
                                                [&](ServerEnd& end) {
                                                  hosts.enter(0);
                                                  serve(work, end);
                                                },
                                            .measure =
                                                [&](ClientEnd& end) {
                                                  hosts.enter(1);
                                                  measure(work, end);
                                                }},
                                           setting);
                     }};
  return contender(
      peer, notes_of(work.wait, caller),
      {.serve = [work](ServerEnd& end) { serve(work, end); },
       .measure = [work,
                   growth](ClientEnd& end) { growth ? measure_growth(work, end) : measure(work, end); }});
}

std::optional<Contender> make_with_lanes(const char* peer, Work work, std::size_t lanes) {
  work.lanes = lanes;
  return make(peer, work);
}

}  // namespace

std::optional<Contender> weft_peer(const Work& work) { return make("weft", work); }

std::optional<Contender> weft_lanes_peer(const Work& work) {
  if ((work.kind != Kind::bulk && work.kind != Kind::flow) || work.wire != Wire::tcp) return std::nullopt;
  return make_with_lanes("weft-lanes", work, 2);
}

std::optional<Contender> weft_4_lanes_peer(const Work& work) {
  return work.kind == Kind::flow ? make_with_lanes("weft-4-lanes", work, 4) : std::nullopt;
}

std::optional<Contender> weft_reference_peer(const Work& work) {
  Work reference = work;
  if (work.kind == Kind::small_tensor) {
    reference.kind = Kind::tiny;
    return make("weft-tiny", reference);
  }
  if (work.kind == Kind::growth && work.peers != 1) {
    reference.peers = 1;
    return make("weft-1-peer", reference);
  }
  return std::nullopt;
}

}  // namespace weft::bench
