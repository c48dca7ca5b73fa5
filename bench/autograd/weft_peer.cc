// weft itself: passes over agents, each a process.
#include "bench/autograd/batches.h"
#include "bench/autograd/work.h"
#include "bench/harness/statistics.h"

#include <weft/dist_autograd/pass.h>
#include <weft/dist_optim/embedding/sharded_embedding.h>
#include <weft/dist_optim/layers.h>
#include <weft/rpc/rpc.h>
#include <weft/rref/rref.h>

#include <ATen/ATen.h>

#include <malloc.h>

#include <algorithm>
#include <array>
#include <sstream>

namespace weft::bench {
namespace {

using dist_autograd::BackwardMode;
using dist_autograd::Pass;

// A matrix on its worker.
class Layer {
 public:
  explicit Layer(std::int64_t size) : weight_(at::ones({size, size}).div(static_cast<double>(size))) {
    weight_.set_requires_grad(true);
  }
  at::Tensor multiply(at::Tensor x) { return x.mm(weight_); }
  // Multiplies by the matrix of this worker, then calls the rest of the chain.
  rpc::Task<at::Tensor> chain(rpc::CallContext& call, std::vector<rref::RRef<Layer>> rest, at::Tensor x);

  using Service =
      rpc::Service<"bench.layer", rpc::Constructor<std::int64_t>, rpc::Method<"multiply", &Layer::multiply>,
                   rpc::Method<"chain", &Layer::chain>>;

 private:
  at::Tensor weight_;
};

rpc::Task<at::Tensor> Layer::chain(rpc::CallContext& call, std::vector<rref::RRef<Layer>> rest,
                                   at::Tensor x) {
  const at::Tensor here = x.mm(weight_);
  if (rest.empty()) co_return here;
  const rref::RRef<Layer> next = rest.front();
  rest.erase(rest.begin());
  co_return co_await next.with(call).call<&Layer::chain>(rest, here);
}

// The object that `churn` creates and releases.
struct Thing {
  std::int64_t value = 0;
  std::int64_t get() const { return value; }
  using Service = rpc::Service<"bench.thing", rpc::Constructor<>, rpc::Method<"get", &Thing::get>>;
};

// The bytes that a process has allocated and not freed.
struct Memory {
  std::int64_t bytes() {
    const auto info = mallinfo2();
    return static_cast<std::int64_t>(info.uordblks + info.hblkhd);
  }
  using Service = rpc::Service<"bench.memory", rpc::Method<"bytes", &Memory::bytes>>;
};

std::unique_ptr<rpc::Agent> make_server(std::size_t i) {
  auto agent = std::make_unique<rpc::Agent>(
      rpc::AgentOptions{
          .name = "worker" + std::to_string(i), .listen = {"tcp://127.0.0.1:0"}, .same_host = false},
      dist_optim::layers());
  agent->allow_create<dist_optim::EmbeddingShard>();
  agent->allow_create<Layer>();
  agent->allow_create<Thing>();
  agent->serve(std::make_shared<Memory>());
  return agent;
}

void serve(const Work& work, ServerEnd& end) {
  std::vector<std::unique_ptr<Process>> others;  // forked before this process has threads
  for (std::size_t i = 1; i < work.workers; ++i)
    others.push_back(std::make_unique<Process>(Pins{}, 0, [&](Channel& channel) {
      const auto agent = make_server(i);
      channel.send(agent->addresses().front());
      channel.receive();  // serves until it is killed
    }));
  const auto agent = make_server(0);
  std::string all = agent->addresses().front();
  for (const auto& other : others) all += " " + other->expect("a worker", std::chrono::seconds{20});
  end.announce(all);
  end.wait_for_client();
}

// --- The client. ---

struct World {
  rpc::Agent& agent;
  std::vector<rpc::Peer> peers;
  std::vector<rref::RRef<Layer>> layers;
  at::Tensor input;
  dist_autograd::BackwardOptions how;
  bool half_unused;
};

// One step of a training program: forward, backward, the gradient.
rpc::Task<void> step(const World* world, Kind kind) {
  Pass pass{world->agent};
  const at::Tensor x = world->input.detach().set_requires_grad(true);
  at::Tensor loss;
  if (kind == Kind::fan_out) {
    std::vector<rpc::Future<at::Tensor>> parts;
    for (const auto& layer : world->layers) parts.push_back(layer.call<&Layer::multiply>(pass, x));
    for (auto& part : parts) {
      const at::Tensor value = co_await std::move(part);
      loss = loss.defined() ? loss + value.sum() : value.sum();
    }
  } else {
    const std::vector<rref::RRef<Layer>> rest(world->layers.begin() + 1, world->layers.end());
    const at::Tensor value = co_await world->layers.front().call<&Layer::chain>(pass, rest, x);
    loss = value.sum();
    if (world->half_unused) {
      const at::Tensor extra = co_await world->layers.front().call<&Layer::chain>(pass, rest, x);
      // In fast mode, an unused output is an error.
      if (world->how.mode == BackwardMode::fast) loss = loss + 0 * extra.sum();
    }
  }
  co_await pass.backward(loss, world->how);
  expect_answer(pass.gradient(x).defined());
}

rpc::Task<Figures> one_by_one(const World* world, Kind kind, Budget budget) {
  LatencyMeter meter(budget);
  do {
    meter.begin();
    co_await step(world, kind);
  } while (meter.end());
  co_return meter.figures();
}

struct Rate {
  explicit Rate(const Budget& budget) : meter(budget) {}
  std::mutex mutex;  // guards the rest
  RateMeter meter;
  bool enough = false;
};

rpc::Task<void> steps_until_enough(const World* world, Rate* rate) {
  for (;;) {
    co_await step(world, Kind::chain);
    std::lock_guard lock(rate->mutex);
    if (rate->enough) co_return;
    rate->enough = !rate->meter.count(1);
  }
}

Figures many_passes(const World& world, const Budget& budget) {
  Rate rate(budget);
  std::vector<rpc::Future<void>> running;
  for (std::size_t i = 0; i < passes_at_a_time; ++i)
    running.push_back(steps_until_enough(&world, &rate).start(world.agent.core()->handlers()));
  for (auto& one : running) std::move(one).get();
  return rate.meter.calls();
}

rpc::Task<Figures> fetch_results(const World* world, Budget budget) {
  LatencyMeter meter(budget);
  do {
    meter.begin();
    const auto result = world->layers.front().remote<&Layer::multiply>(world->input);
    const at::Tensor value = co_await result.to_here();
    expect_answer(value.numel() == world->input.numel());
  } while (meter.end());
  co_return meter.figures();
}

rpc::Task<Figures> churn(const World* world, Budget budget) {
  RateMeter meter(budget);
  do {
    std::vector<rref::RRef<Thing>> things;
    things.reserve(objects_at_a_time);
    for (std::size_t i = 0; i < objects_at_a_time; ++i)
      things.push_back(rref::create<Thing>(world->peers.front()));
    const std::int64_t value = co_await things.back().call<&Thing::get>();
    expect_answer(value == 0);
  } while (meter.count(objects_at_a_time));
  co_return meter.calls();
}

// The memory of one live RRef at its user and at its owner, including the object and the table entries for
// both.
rpc::Task<Figures> live(const World* world) {
  const rpc::Peer& owner = world->peers.front();
  Memory memory;
  std::vector<rref::RRef<Thing>> things;
  things.reserve(live_objects);
  std::array<std::int64_t, 2> user{}, owned{};
  for (const std::size_t i : {0, 1}) {  // the first round allocates the memory that all RRefs share
    const std::size_t until = i == 0 ? objects_at_a_time : live_objects;
    while (things.size() < until) {
      things.push_back(rref::create<Thing>(owner));
      if (things.size() % objects_at_a_time == 0) co_await things.back().ready();
    }
    for (const auto& thing : things) expect_answer(co_await thing.call<&Thing::get>() == 0);
    user[i] = memory.bytes();
    owned[i] = co_await owner.call<&Memory::bytes>();
  }
  constexpr auto more = static_cast<double>(live_objects - objects_at_a_time);
  co_return Figures{{"user_B", static_cast<double>(user[1] - user[0]) / more},
                    {"owner_B", static_cast<double>(owned[1] - owned[0]) / more}};
}

// A pass of `calls` calls, whose results are all used. Reports the time per call, including its part of the
// backward.
rpc::Task<Figures> wide(const World* world, Budget budget, std::size_t calls) {
  std::vector<double> microseconds;
  const auto began = std::chrono::steady_clock::now();
  while (microseconds.size() < 3 || std::chrono::steady_clock::now() - began < budget.duration) {
    const auto begin = std::chrono::steady_clock::now();
    Pass pass{world->agent};
    const at::Tensor x = world->input.detach().set_requires_grad(true);
    std::vector<at::Tensor> sums;
    for (std::size_t done = 0; done < calls;) {
      std::vector<rpc::Future<at::Tensor>> some;
      for (; done < calls && some.size() < passes_at_a_time; ++done)
        some.push_back(world->layers.front().call<&Layer::multiply>(pass, x));
      for (auto& value : some) sums.push_back((co_await std::move(value)).sum());
    }
    co_await pass.backward(at::stack(sums).sum(), world->how);
    expect_answer(pass.gradient(x).defined());
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
    microseconds.push_back(took.count() / static_cast<double>(calls));
  }
  co_return Figures{{"call_us", median(std::move(microseconds))}};
}

// Reads rows that exist already. Each read is one call.
rpc::Task<Figures> rows_of_a_table(const World* world, Budget budget, const Work* work) {
  const dist_optim::EmbeddingOptions options{.dimension = row_size,
                                             .optimizer = dist_optim::RowOptimizer::sgd(0.01)};
  const dist_optim::ShardedEmbedding table(world->agent, options, world->peers);
  co_await table.ready();
  for (std::int64_t begin = 0; begin < work->rows; begin += 16 * batch_rows) {
    const Pass pass{world->agent};
    (void)co_await table.lookup(pass, at::arange(begin, std::min(begin + 16 * batch_rows, work->rows)));
  }
  Batches batches(*work);
  RateMeter meter(budget);
  do {
    Pass pass{world->agent};
    const at::Tensor rows = co_await table.lookup(pass, batches.next());
    expect_answer(rows.size(0) == batch_rows && rows.size(1) == row_size);
    if (work->kind == Kind::lookup) continue;
    co_await pass.backward(rows.sum());
    co_await table.step(pass);
  } while (meter.count(batch_rows));
  co_return meter.calls();
}

void measure(const Work& work, BackwardMode mode, ClientEnd& end) {
  rpc::Agent agent(rpc::AgentOptions{.name = "client", .listen = {"tcp://127.0.0.1:0"}, .same_host = false},
                   dist_optim::layers());
  const auto size = static_cast<std::int64_t>(work.size);
  World world{agent, {}, {}, at::ones({size, size}), {.mode = mode}, work.half_unused};
  std::istringstream addresses(end.address());
  for (std::string address; addresses >> address;) {
    world.peers.push_back(agent.connect(address));
    world.peers.back().ready().get();
    world.layers.push_back(rref::create<Layer>(world.peers.back(), size));
    world.layers.back().ready().get();
  }
  rpc::Executor& threads = agent.core()->handlers();
  switch (work.kind) {
    case Kind::passes:
      return end.report(many_passes(world, end.budget()));
    case Kind::to_here:
      return end.report(fetch_results(&world, end.budget()).start(threads).get());
    case Kind::churn:
      return end.report(churn(&world, end.budget()).start(threads).get());
    case Kind::live:
      return end.report(live(&world).start(threads).get());
    case Kind::lookup:
    case Kind::update:
      return end.report(rows_of_a_table(&world, end.budget(), &work).start(threads).get());
    case Kind::wide:
      return end.report(wide(&world, end.budget(), work.calls).start(threads).get());
    default:
      return end.report(one_by_one(&world, work.kind, end.budget()).start(threads).get());
  }
}

std::optional<Contender> make(const char* peer, const Work& work, BackwardMode mode) {
  return contender(peer, {{"wait", "blocking"}, {"caller", "coroutine on the handlers' threads"}},
                   {.serve = [work](ServerEnd& end) { serve(work, end); },
                    .measure = [work, mode](ClientEnd& end) { measure(work, mode, end); }});
}

}  // namespace

std::optional<Contender> weft_peer(const Work& work) { return make("weft", work, BackwardMode::smart); }

std::optional<Contender> weft_fast_peer(const Work& work) {
  if (work.kind == Kind::to_here || work.kind == Kind::churn || work.kind == Kind::live) return std::nullopt;
  if (work.is_table()) return std::nullopt;
  return make("weft-fast", work, BackwardMode::fast);
}

std::optional<Contender> weft_narrow_peer(const Work& work) {
  if (work.kind != Kind::wide) return std::nullopt;
  Work narrow = work;
  narrow.calls = 100;
  return make("weft-100", narrow, BackwardMode::smart);
}

}  // namespace weft::bench
