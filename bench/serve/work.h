// What the peers of this bench share: a model, and the load of a client. bench/README.md describes the cases.
#pragma once

#include "bench/harness/pair.h"
#include "bench/harness/statistics.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <thread>
#include <vector>

namespace weft::bench {

struct Work {
  std::size_t max_batch = 64;   // requests that the model computes together
  std::size_t in_flight = 112;  // calls of the client
};
inline constexpr auto max_delay = std::chrono::milliseconds{2};

// Computes a batch as a device does, while the thread sleeps: 2 ms, and 0.1 ms for each row.
inline void run_model(std::size_t rows) {
  std::this_thread::sleep_for(std::chrono::milliseconds{2} +
                              std::chrono::microseconds{100} * static_cast<int>(rows));
}

// The latencies and the rate of calls, many at a time. Thread-safety: none.
class LoadMeter {
 public:
  using Clock = std::chrono::steady_clock;
  explicit LoadMeter(const Budget& budget) : budget_(budget) {}
  // Ends a call that has begun at that time. False: it was the last one.
  bool end(Clock::time_point began) {
    const auto now = Clock::now();
    if (now - created_ < budget_.warm_up) return true;
    if (microseconds_.empty()) started_ = now;
    microseconds_.push_back(std::chrono::duration<double, std::micro>(now - began).count());
    ended_ = now;
    return now - started_ < budget_.duration;
  }
  Figures figures() const {
    const double seconds = std::chrono::duration<double>(ended_ - started_).count();
    return {{"p50_us", quantile(microseconds_, 0.5)},
            {"p99_us", quantile(microseconds_, 0.99)},
            {"calls_per_s", static_cast<double>(microseconds_.size() - 1) / seconds}};
  }

 private:
  const Budget budget_;
  const Clock::time_point created_ = Clock::now();
  Clock::time_point started_, ended_;
  std::vector<double> microseconds_;
};

Contender weft_peer(const char* peer, const Work& work);  // dist_optim::BatchedService
#ifdef WEFT_BENCH_GRPC
Contender grpc_peer(const Work& work);  // gRPC's callback server, with a hand-written batcher
#endif

}  // namespace weft::bench
