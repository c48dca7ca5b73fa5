#include "bench/serve/work.h"

#include <weft/dist_optim/serve/batched_service.h>
#include <weft/rpc/rpc.h>

namespace weft::bench {
namespace {

using Echo = dist_optim::BatchedService<"bench.echo", std::int64_t, std::int64_t>;

void serve(const Work& work, ServerEnd& end) {
  rpc::Agent agent({.name = "server", .listen = {"tcp://127.0.0.1:0"}, .same_host = false});
  agent.serve(dist_optim::batched<"bench.echo">(
      [](std::vector<std::int64_t> numbers) {
        run_model(numbers.size());
        return numbers;
      },
      {.max_batch = work.max_batch, .max_delay = max_delay}));
  end.announce(agent.addresses().front());
  end.wait_for_client();
}

rpc::Task<> call_until_enough(rpc::Peer peer, LoadMeter* meter, bool* more) {
  for (std::int64_t number = 0; *more; ++number) {
    const auto began = LoadMeter::Clock::now();
    const std::int64_t answer = co_await peer.call<&Echo::run>(number);
    expect_answer(answer == number);
    *more = *more && meter->end(began);
  }
}

void measure(const Work& work, ClientEnd& end) {
  rpc::Agent agent({.name = "client", .same_host = false});
  const rpc::Peer peer = agent.peer(end.address());
  peer.ready().get();
  LoadMeter meter(end.budget());
  bool more = true;
  std::vector<rpc::Future<void>> callers;
  for (std::size_t i = 0; i < work.in_flight; ++i)  // they run on one loop, one at a time
    callers.push_back(call_until_enough(peer, &meter, &more).start(*peer.calls().route()->loop()));
  rpc::when_all(std::move(callers)).get();
  end.report(meter.figures());
}

}  // namespace

Contender weft_peer(const char* peer, const Work& work) {
  return contender(peer, {},
                   {.serve = [=](ServerEnd& end) { serve(work, end); },
                    .measure = [=](ClientEnd& end) { measure(work, end); }});
}

}  // namespace weft::bench
