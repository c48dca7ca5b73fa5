#include "bench/harness/meter.h"

#include "bench/harness/statistics.h"

#include <stdexcept>

namespace weft::bench {
namespace {

constexpr std::size_t fewest_calls = 3;  // the minimum number of calls of a warm-up, and of a measurement

}  // namespace

void expect_answer(bool right) {
  if (!right) throw std::runtime_error("the answer is wrong");
}

LatencyMeter::LatencyMeter(const Budget& budget) : budget_(budget) { microseconds_.reserve(1 << 20); }

bool LatencyMeter::end() {
  const auto now = Clock::now();
  if (ignored_ < fewest_calls || (microseconds_.empty() && now - created_ < budget_.warm_up)) {
    ++ignored_;
    return true;
  }
  microseconds_.push_back(std::chrono::duration<double, std::micro>(now - began_).count());
  elapsed_ += now - began_;
  return elapsed_ < budget_.duration || microseconds_.size() < fewest_calls;
}

Figures LatencyMeter::figures() const {
  return {{"p50_us", quantile(microseconds_, 0.5)}, {"p99_us", quantile(microseconds_, 0.99)}};
}

bool RateMeter::count(std::size_t calls) {
  last_ = Clock::now();
  if (!warm_) {
    ignored_ += calls;
    warm_ = ignored_ >= fewest_calls && last_ - created_ >= budget_.warm_up;
    started_ = last_;
    return true;
  }
  counted_ += calls;
  return last_ - started_ < budget_.duration || counted_ < fewest_calls;
}

Figures RateMeter::calls() const { return {{"calls_per_s", static_cast<double>(counted_) / seconds()}}; }

Figures RateMeter::bandwidth(std::size_t bytes_per_call) const {
  return {{"GBps", static_cast<double>(counted_) * static_cast<double>(bytes_per_call) / seconds() / 1e9}};
}

}  // namespace weft::bench
