// FlightClock: timestamps that cost some ten nanoseconds: the system's clock takes two to three times as
// long.
//
// Ticks are of the processor's counter, which is synchronous on all cores (x86-64), or elsewhere of the
// system's clock. They are converted to times when they are read, between two readings of both clocks:
// whatever the counter does, the times lie between these. Thread-safety: a value; constant after
// construction.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace weft::collectives {

class FlightClock {
 public:
  using Ticks = std::uint64_t;

  // The counter's present value. Comparable only with values from the same host.
  static Ticks now() {
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#else
    return static_cast<Ticks>(system());
#endif
  }

  // For ticks since this clock was created. Nanoseconds since 1970.
  class Scale {
   public:
    // The time of the call of scale().
    std::int64_t taken() const { return last_.time; }
    // The time of these ticks. Ticks before the clock's creation or after scale() count as these.
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
