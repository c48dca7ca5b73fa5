// Ranks: processes that do the same together, forked for one measurement: process r of the pins is rank r.
//
// Rank 0 says on its channel what it found, {"figures": {NAME: NUMBER…}, "threads": NUMBER}; it may be
// another program (become(), and then its descriptor 3, a message a packet), as all others may.
// Thread-safety: one thread.
#pragma once

#include "bench/harness/bench.h"
#include "bench/harness/process.h"

namespace weft::bench {

class RankEnd {
 public:
  RankEnd(Channel& channel, int rank, const Setting& setting)
      : channel_(channel), rank_(rank), setting_(setting) {}
  int rank() const { return rank_; }
  const Budget& budget() const { return setting_.budget; }
  const Pins& pins() const { return setting_.pins; }
  void report(const Figures& figures);           // rank 0, once
  void report_text(const std::string& message);  // the same, as somebody else wrote it
  [[noreturn]] void become(const std::vector<std::string>& command) { channel_.become(command); }

 private:
  Channel& channel_;
  const int rank_;
  const Setting& setting_;
};

// One rank's step, again and again, until rank 0 has measured enough: in blocks, after each of which rank 0
// tells the other ranks the number of steps in the next one, by the peer's own means; 0 ends the measurement.
class Rounds {
 public:
  explicit Rounds(const RankEnd& end) : meter_(end.budget()) {}
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

// The outcome has the error of any process that fails.
Outcome measure_ranks(int ranks, const Setting& setting, const std::function<void(RankEnd&)>& body);

}  // namespace weft::bench
