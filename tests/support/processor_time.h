// The cost of work in processor time of the calling thread, which other load of the machine hardly changes.
#pragma once

#include <time.h>

#include <chrono>

namespace weft::test {

template <class Work>
std::chrono::nanoseconds processor_time_of(Work work) {
  const auto now = [] {
    timespec time{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
  };
  const auto begin = now();
  work();
  return now() - begin;
}

}  // namespace weft::test
