#include <weft/parallel/data_parallel/iteration_stats.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace weft::data_parallel {
namespace {

using std::chrono::nanoseconds;

double milliseconds(nanoseconds time) { return std::chrono::duration<double, std::milli>(time).count(); }

// While at least one bucket was in flight, until `end`.
nanoseconds in_flight(const std::vector<BucketStats>& buckets, nanoseconds end) {
  std::vector<std::pair<nanoseconds, nanoseconds>> spans;
  for (const BucketStats& bucket : buckets)
    spans.emplace_back(std::min(bucket.launched, end), std::min(bucket.reduced, end));
  std::sort(spans.begin(), spans.end());
  nanoseconds sum{0}, covered{0};
  for (const auto& [from, to] : spans) {
    sum += std::max(to - std::max(from, covered), nanoseconds{0});
    covered = std::max(covered, to);
  }
  return sum;
}

template <class... Arguments>
std::string format(const char* text, Arguments... arguments) {
  std::string line(static_cast<std::size_t>(std::snprintf(nullptr, 0, text, arguments...)), '\0');
  std::snprintf(line.data(), line.size() + 1, text, arguments...);
  return line;
}

}  // namespace

std::size_t IterationStats::bytes() const {
  std::size_t sum = 0;
  for (const BucketStats& bucket : buckets) sum += bucket.bytes;
  return sum;
}

nanoseconds IterationStats::communication() const { return in_flight(buckets, nanoseconds::max()); }

nanoseconds IterationStats::overlapped() const { return in_flight(buckets, backward); }

std::string to_table(const IterationStats& stats, const std::vector<std::string>& names) {
  std::string table = format(
      "iteration %zu: forward %.3f ms, backward %.3f ms, waited %.3f ms; communication %.3f ms, of which "
      "%.3f ms overlapped; %zu buckets skipped; hook %s\n",
      stats.iteration, milliseconds(stats.forward), milliseconds(stats.backward), milliseconds(stats.waited),
      milliseconds(stats.communication()), milliseconds(stats.overlapped()), stats.skipped,
      stats.hook.c_str());
  table += "bucket       KiB  launched ms   reduced ms  waited longest for (ms)\n";
  for (const BucketStats& bucket : stats.buckets)
    table += format(
        "%6zu %9.1f %12.3f %12.3f  %s (%.3f)\n", bucket.index, static_cast<double>(bucket.bytes) / 1024,
        milliseconds(bucket.launched), milliseconds(bucket.reduced),
        bucket.late < names.size() ? names[bucket.late].c_str() : "none", milliseconds(bucket.delay));
  return table;
}

std::optional<LateGradients::Late> LateGradients::add(const IterationStats& stats) {
  std::optional<Late> late;
  for (const BucketStats& bucket : stats.buckets) {
    if (streaks_.size() <= bucket.index) streaks_.resize(bucket.index + 1);
    Streak& streak = streaks_[bucket.index];
    if (bucket.delay < min_delay || bucket.delay * 2 <= stats.backward) {
      streak = {};
      continue;
    }
    if (streak.parameter != bucket.late) streak = {bucket.late, 0};
    if (++streak.length < iterations || late ||
        std::find(announced_.begin(), announced_.end(), bucket.late) != announced_.end())
      continue;
    announced_.push_back(bucket.late);
    late = Late{bucket.late, bucket.index, bucket.delay};
  }
  return late;
}

}  // namespace weft::data_parallel
