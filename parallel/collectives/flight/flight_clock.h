// FlightClock: timestamps that take about ten nanoseconds; reading the system's clock takes two to three
// times as long.
//
// On x86-64, ticks are values of the processor's counter, which is synchronous on all cores; on other
// processors they are values of the system's clock. A Scale converts ticks to times by interpolation between
// two readings of both clocks, so the times are always between these two readings. Thread-safety: a value;
// constant after construction.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace weft::collectives {

class FlightClock {
 public:
  using Ticks = std::uint64_t;  // a value of the counter

  // The counter's present value. Comparable only with values from the same host.
  static Ticks now() {
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#else
    return static_cast<Ticks>(system());
#endif
  }

  // Converts ticks since this clock's creation to times in nanoseconds since 1970.
  class Scale {
   public:
    // The time of the call of scale().
    std::int64_t taken() const { return last_.time; }
    // The time of these ticks. Ticks before the clock's creation have the time of the creation, and ticks
    // after the call of scale() have the time of that call.
    std::int64_t time_of(Ticks ticks) const {
      if (last_.ticks <= first_.ticks || last_.time <= first_.time) return last_.time;
      const double part = static_cast<double>(std::clamp(ticks, first_.ticks, last_.ticks) - first_.ticks) /
                          static_cast<double>(last_.ticks - first_.ticks);
      return first_.time + static_cast<std::int64_t>(part * static_cast<double>(last_.time - first_.time));
    }

   private:
    friend class FlightClock;
    struct Look {
      Ticks ticks = now();
      std::int64_t time = system();
    };
    explicit Scale(const Look& first) : first_(first) {}
    const Look first_, last_;
  };
  Scale scale() const { return Scale(first_); }

 private:
  static std::int64_t system() {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
  }
  Scale::Look first_;
};

}  // namespace weft::collectives
