// Calls of one method that returns its argument: one at a time, or many at a time on one loop. The benches of
// rpc and of spinning use them. Thread-safety: the coroutines run on the loop of their peers.
#pragma once

#include "bench/harness/meter.h"

#include <weft/rpc/rpc.h>

#include <exception>
#include <utility>
#include <vector>

namespace weft::bench {

inline std::int64_t echo(std::int64_t x) { return x; }
using Echo = rpc::Function<"bench.echo", &echo, rpc::non_blocking>;

inline rpc::Task<> call_times(rpc::Peer peer, std::int64_t times) {
  for (std::int64_t number = 0; number < times; ++number) {
    const std::int64_t answer = co_await peer.call<Echo>(number);
    expect_answer(answer == number);
  }
}

inline rpc::Task<Figures> call_one_by_one(rpc::Peer peer, Budget budget) {
  LatencyMeter meter(budget);
  std::int64_t number = 0;
  do {
    meter.begin();
    const std::int64_t answer = co_await peer.call<Echo>(++number);
    expect_answer(answer == number);
  } while (meter.end());
  co_return meter.figures();
}

// The same from a thread that waits in get().
template <class Method = Echo>
Figures get_one_by_one(const rpc::Peer& peer, const Budget& budget) {
  LatencyMeter meter(budget);
  std::int64_t number = 0;
  do {
    meter.begin();
    const std::int64_t answer = peer.call<Method>(++number).get();
    expect_answer(answer == number);
  } while (meter.end());
  return meter.figures();
}

struct Crowd {  // a group of callers on one loop, which runs one caller at a time
  explicit Crowd(const Budget& budget) : meter(budget) {}
  RateMeter meter;
  bool enough = false;
  std::exception_ptr error;
};

inline rpc::Task<> call_until_enough(rpc::Peer peer, Crowd* crowd) {
  try {
    std::int64_t number = 0;
    while (!crowd->enough) {
      const std::int64_t answer = co_await peer.call<Echo>(++number);
      expect_answer(answer == number);
      if (!crowd->enough) crowd->enough = !crowd->meter.count(1);
    }
  } catch (...) {
    crowd->enough = true;
    crowd->error = std::current_exception();
  }
}

// Keeps the same number of calls in flight to each peer. The routes of all peers are on `loop`.
inline rpc::Task<Figures> call_many(std::vector<rpc::Peer> peers, std::size_t in_flight, Budget budget,
                                    rpc::Executor* loop) {
  Crowd crowd(budget);
  std::vector<rpc::Future<void>> callers;
  for (const rpc::Peer& peer : peers)
    for (std::size_t i = 0; i < in_flight; ++i)
      callers.push_back(call_until_enough(peer, &crowd).start(*loop));
  // All callers have ended before the crowd is destroyed.
  for (auto& caller : callers) co_await std::move(caller);
  if (crowd.error) std::rethrow_exception(crowd.error);
  co_return crowd.meter.calls();
}

}  // namespace weft::bench
