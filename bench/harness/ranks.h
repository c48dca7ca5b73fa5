// Ranks: processes that are forked for one measurement and run the same function. Process r of the pins is
// rank r.
//
// Rank 0 sends {"figures": {NAME: NUMBER…}, "threads": NUMBER} on its channel. Any rank may become another
// program (become()), which uses the channel at descriptor 3 with one message per packet.
// Thread-safety: one thread.
#pragma once

#include "bench/harness/bench.h"
#include "bench/harness/process.h"

#include <memory>
#include <vector>

namespace weft::bench {

class RankEnd {
 public:
  RankEnd(Channel& channel, int rank, const Setting& setting)
      : channel_(channel), rank_(rank), setting_(setting) {}
  int rank() const { return rank_; }
  const Budget& budget() const { return setting_.budget; }
  const Pins& pins() const { return setting_.pins; }
  void report(const Figures& figures);           // rank 0, once
  void report_text(const std::string& message);  // the same, with a message that another program wrote
  [[noreturn]] void become(const std::vector<std::string>& command) { channel_.become(command); }

 private:
  Channel& channel_;
  const int rank_;
  const Setting& setting_;
};

// Runs one rank's step repeatedly until rank 0 has measured enough. Steps run in blocks. After each block,
// rank 0 sends the number of steps of the next block to the other ranks, by the peer that is measured. The
// number 0 ends the measurement.
class Rounds {
 public:
  explicit Rounds(const Budget& budget) : meter_(budget) {}
  explicit Rounds(const RankEnd& end) : Rounds(end.budget()) {}
  template <class Step, class Tell>
  void run(Step step, Tell tell) {
    for (std::size_t count = 1, next = 1; count != 0; count = tell(next)) {
      const auto began = std::chrono::steady_clock::now();
      bool more = true;
      for (std::size_t i = 0; i < count; ++i) {
        meter_.begin();
        step();
        more = meter_.end() && more;
      }
      const auto took = std::chrono::steady_clock::now() - began;
      next = !more ? 0 : took < std::chrono::milliseconds{5} ? 2 * count : count;
    }
  }
  Figures figures() const { return meter_.figures(); }

 private:
  LatencyMeter meter_;
};

// Returns processes that compute without end, one on each core that this process may use: the other programs
// of a shared host. They end with the returned objects.
std::vector<std::unique_ptr<Process>> compute_on_each_core();

// The outcome has the error of any process that fails.
Outcome measure_ranks(int ranks, const Setting& setting, const std::function<void(RankEnd&)>& body);

}  // namespace weft::bench
