// Work: the task that each case of this bench gives to a peer. Each peer has its own file.
// bench/README.md describes the cases. Thread-safety: values.
#pragma once

#include "bench/harness/pair.h"

#include <optional>

namespace weft::bench {

enum class Kind {
  chain,    // a pass over workers that call each other, and its backward
  fan_out,  // a pass that calls every worker, and its backward
  passes,   // many passes at a time, each with one call
  to_here,  // a result that stays at its worker, and a to_here() that fetches it
  churn,    // objects created on a worker, and released
  live,     // the memory of live RRefs to objects of a worker
  wide,     // a pass of many messages, and its backward
  lookup,   // rows of a ShardedEmbedding whose owners are the workers, in a pass
  update,   // a lookup, its backward, and a step of the rows
};

struct Work {
  std::string name;
  Kind kind;
  std::size_t workers = 1;   // the number of worker processes, without the client
  std::size_t size = 32;     // products are of size x size matrices
  bool half_unused = false;  // the workers also return tensors that are not used
  std::size_t calls = 0;     // the calls of a wide pass
  std::int64_t rows = 0;     // the rows of an embedding
  bool skewed = false;       // a few rows of the embedding occur most often in a batch

  bool is_table() const { return kind == Kind::lookup || kind == Kind::update; }
};

inline constexpr std::size_t passes_at_a_time = 64;
inline constexpr std::size_t objects_at_a_time = 1000;
inline constexpr std::size_t live_objects = 100'000;
inline constexpr std::int64_t batch_rows = 4096, row_size = 16;
inline constexpr double skew = 3;  // an id is rows * u^skew, with u uniform in [0, 1)

// Each function returns nullopt if the work does not apply to the peer.
using MakeContender = std::optional<Contender> (*)(const Work&);
std::optional<Contender> weft_peer(const Work& work);
std::optional<Contender> weft_fast_peer(const Work& work);    // with BackwardMode::fast
std::optional<Contender> weft_narrow_peer(const Work& work);  // the baseline of wide passes: 100 calls
std::optional<Contender> raw_peer(const Work& work);          // for embeddings only: one tensor in the client
std::optional<Contender> torch_peer(const Work& work);        // PyTorch's DistEngine, in C++
std::optional<Contender> torch_python_peer(const Work& work);

}  // namespace weft::bench
