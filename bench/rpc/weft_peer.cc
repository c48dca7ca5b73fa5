// weft itself: two agents, typed calls.
#include "bench/rpc/work.h"

#include <weft/rpc/rpc.h>
#include <weft/rpc/tensor/layers.h>
#include <weft/rpc/tensor/tensor_codec.h>

#include <ATen/ATen.h>

namespace weft::bench {
namespace {

std::int64_t echo(std::int64_t x) { return x; }
using Echo = rpc::Function<"bench.echo", &echo, rpc::non_blocking>;

std::int64_t take(at::Tensor tensor) { return tensor.numel(); }
using Take = rpc::Function<"bench.take", &take>;

// As each would be used: small calls by a service, tensors by a program that trains.
rpc::Layers layers(const Work& work) { return work.kind == Kind::bulk ? tensor::layers() : rpc::Layers{}; }

void serve(const Work& work, ServerEnd& end) {
  const std::string listen = work.wire == Wire::tcp ? "tcp://127.0.0.1:0" : "unix://" + scratch_path(".sock");
  rpc::Agent agent({.name = "server", .listen = {listen}}, layers(work));
  agent.serve<Echo>();
  agent.serve<Take>();
  end.announce(agent.addresses().front());
  end.wait_for_client();
}

rpc::Task<Figures> call_one_by_one(rpc::Peer peer, Budget budget) {
  LatencyMeter meter(budget);
  do {
    meter.begin();
    co_await peer.call<Echo>(std::int64_t{1});
  } while (meter.end());
  co_return meter.figures();
}

Figures get_one_by_one(const rpc::Peer& peer, const Budget& budget) {
  LatencyMeter meter(budget);
  do {
    meter.begin();
    peer.call<Echo>(std::int64_t{1}).get();
  } while (meter.end());
  return meter.figures();
}

rpc::Task<> call_until_enough(rpc::Peer peer, RateMeter* meter, bool* enough) {
  while (!*enough) {
    co_await peer.call<Echo>(std::int64_t{1});
    if (!*enough) *enough = !meter->count(1);
  }
}

rpc::Task<Figures> call_many(rpc::Peer peer, Budget budget, rpc::Executor* loop) {
  RateMeter meter(budget);
  bool enough = false;
  std::vector<rpc::Future<void>> callers;  // all of them on the loop, one at a time
  for (std::size_t i = 0; i < in_flight; ++i)
    callers.push_back(call_until_enough(peer, &meter, &enough).start(*loop));
  for (auto& caller : callers) co_await std::move(caller);
  co_return meter.calls();
}

rpc::Task<Figures> send_tensors(rpc::Peer peer, Budget budget, std::size_t bytes) {
  const at::Tensor tensor = at::ones({static_cast<std::int64_t>(bytes / sizeof(float))});
  RateMeter meter(budget);
  do {
    co_await peer.call<Take>(tensor);
  } while (meter.count(1));
  co_return meter.bandwidth(bytes);
}

Figures figures(const Work& work, const rpc::Peer& peer, const Budget& budget) {
  if (work.kind == Kind::get) return get_one_by_one(peer, budget);
  rpc::Executor& loop = *peer.route()->loop();
  switch (work.kind) {
    case Kind::throughput:
      return call_many(peer, budget, &loop).start(loop).get();
    case Kind::bulk:
      return send_tensors(peer, budget, work.bytes).start(loop).get();
    default:
      return call_one_by_one(peer, budget).start(loop).get();
  }
}

void measure(const Work& work, ClientEnd& end) {
  rpc::Agent agent({.name = "client"}, layers(work));
  const rpc::Peer peer = agent.connect(end.address());
  peer.ready().get();
  end.report(figures(work, peer, end.budget()));
}

}  // namespace

std::optional<Contender> weft_peer(const Work& work) {
  const std::string caller = work.kind == Kind::get ? "get() on main" : "coroutine on the loop";
  return contender("weft", {{"wait", "blocking"}, {"caller", caller}},
                   {.serve = [work](ServerEnd& end) { serve(work, end); },
                    .measure = [work](ClientEnd& end) { measure(work, end); }});
}

}  // namespace weft::bench
