// The lower bound on one host: processes that synchronize through one shared memory, which also holds their
// data. Each rank either reduces its part of all ranks' data in one pass and writes the result to all ranks,
// or copies its output from the other ranks.
#include "bench/collectives/work.h"

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <system_error>

namespace weft::bench {
namespace {

struct Shared {
  alignas(128) std::atomic<std::uint64_t> arrived[8][16];  // each rank's flags are on separate cache lines
  std::atomic<std::uint64_t> next;
};

class Memory {
 public:
  explicit Memory(std::size_t bytes) : bytes_(bytes) {
    base_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (base_ == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
  }
  ~Memory() { munmap(base_, bytes_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  std::byte* base() const { return static_cast<std::byte*>(base_); }

 private:
  std::size_t bytes_;
  void* base_;
};

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define WEFT_BENCH_CLONES __attribute__((target_clones("default", "avx2", "avx512f"), optimize("O3")))
#else
#define WEFT_BENCH_CLONES
#endif

WEFT_BENCH_CLONES
void add(float* __restrict to, const float* __restrict from, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) to[i] += from[i];
}

void run(const Work& work, const Memory& memory, RankEnd& end) {
  auto& shared = *reinterpret_cast<Shared*>(memory.base());
  const auto ranks = static_cast<std::size_t>(work.ranks), rank = static_cast<std::size_t>(end.rank());
  const bool crowded = ranks > static_cast<std::size_t>(sysconf(_SC_NPROCESSORS_ONLN));
  const auto data = [&](std::size_t of) {  // the input, followed by the output
    return reinterpret_cast<float*>(memory.base() + 4096 + of * 2 * work.bytes);
  };
  std::uint64_t step = 0;
  const auto meet = [&] {
    shared.arrived[rank][0].store(++step, std::memory_order_release);
    for (std::size_t other = 0; other < ranks; ++other)
      while (shared.arrived[other][0].load(std::memory_order_acquire) < step)
        if (crowded) sched_yield();
  };
  const std::size_t n = work.elements(), part = work.part();
  constexpr std::size_t block = 4096;  // small enough for the first-level cache
  const auto collective = [&] {
    meet();
    float* const own = data(rank);
    switch (work.operation) {
      case Operation::all_reduce:
      case Operation::reduce_scatter:
        for (std::size_t begin = rank * part; begin < (rank + 1) * part; begin += block) {
          const std::size_t count = std::min(block, (rank + 1) * part - begin);
          for (std::size_t other = 0; other < ranks; ++other)
            if (other != rank) add(own + begin, data(other) + begin, count);
          if (work.operation == Operation::all_reduce)
            for (std::size_t other = 0; other < ranks; ++other)
              if (other != rank) std::memcpy(data(other) + begin, own + begin, count * sizeof(float));
        }
        break;
      case Operation::broadcast:
        if (rank != 0) std::memcpy(own, data(0), work.bytes);
        break;
      case Operation::all_gather:
        for (std::size_t other = 0; other < ranks; ++other)
          std::memcpy(own + n + other * part, data(other), part * sizeof(float));
        break;
      case Operation::all_to_all:
        for (std::size_t other = 0; other < ranks; ++other)
          std::memcpy(own + n + other * part, data(other) + rank * part, part * sizeof(float));
        break;
    }
    meet();
  };
  std::memset(data(rank), 0, 2 * work.bytes);
  measure_rounds(end, work, collective, [&](std::size_t next) {
    if (rank == 0) shared.next.store(next);
    meet();
    const std::size_t told = shared.next.load();
    meet();
    return told;
  });
}

}  // namespace

std::optional<Contender> raw_peer(const Work& work) {
  if (work.kind == Kind::tcp || work.kind == Kind::hosts) return std::nullopt;
  return Contender{"raw", {{"caller", "main"}}, [work](const Setting& setting) {
                     const Memory memory(4096 + static_cast<std::size_t>(work.ranks) * 2 * work.bytes);
                     return measure_ranks(work.ranks, setting, [&](RankEnd& end) { run(work, memory, end); });
                   }};
}

}  // namespace weft::bench
