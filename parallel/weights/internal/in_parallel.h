// in_parallel(): runs the parts of a large read on several threads.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <system_error>
#include <thread>
#include <vector>

namespace weft::weights {

// Calls run(part) for each part, on as many threads as LibTorch's operators use, and returns when all have
// returned. Throws an exception of one of them. at::parallel_for() needs OpenMP in the program that is
// compiled.
template <class Run>
void in_parallel(std::int64_t parts, const Run& run) {
  std::atomic<std::int64_t> next = 0;
  std::atomic<bool> failed = false;
  std::exception_ptr error;
  const auto work = [&] {
    try {
      for (std::int64_t part = next++; part < parts && !failed; part = next++) run(part);
    } catch (...) {
      if (!failed.exchange(true)) error = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> others;
    try {
      for (std::int64_t i = 1; i < std::min<std::int64_t>(parts, at::get_num_threads()); ++i)
        others.emplace_back(work);
    } catch (const std::system_error&) {  // a limit on threads: those that have started suffice
    }
    work();
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace weft::weights
