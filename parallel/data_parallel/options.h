// Options of a DistributedDataParallel.
#pragma once

#include <weft/rpc/core/export.h>

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace weft::data_parallel {

// When the buckets are reduced, and by which thread.
enum class Overlap : std::uint8_t {
  automatic,  // measured in the first iterations: `group` or `after`, whichever takes less time
  group,      // during backward, on the threads of the group
  caller,     // during backward, on the thread of backward as far as a collective need not wait
  after,      // after backward, on its thread
};

// What happens to the module's buffers before each forward in training mode.
enum class Buffers : std::uint8_t {
  broadcast,  // they become those of rank 0
  average,    // floating-point buffers become their average, others those of rank 0
  local,      // nothing: the ranks' buffers may differ
};

// Types in which forward, backward and the reduction compute. nullopt: the type stays as it is.
struct MixedPrecision {
  // Forward and backward use copies of the floating-point parameters in this type, and floating-point inputs
  // of forward are converted to it. The parameters and their gradients keep their type for the program.
  std::optional<at::ScalarType> parameters = {};
  // Gradients are rounded to it before the reduction and sent in it (CastHook).
  std::optional<at::ScalarType> reduction = {};
  // Floating-point buffers are converted to it when the module is wrapped, and stay so.
  std::optional<at::ScalarType> buffers = {};
};

struct Options {
  // Bytes of the first bucket, of the second and so on; the last entry holds for all further buckets. The
  // gradients that come last have a bucket of at most the first entry too (split_last_bucket).
  std::vector<std::size_t> bucket_bytes = {std::size_t{1} << 20, std::size_t{25} << 20};
  Overlap overlap = Overlap::automatic;
  // The graph is the same in every iteration. A parameter may then get its gradient in several parts
  // (re-entrant checkpoints), and the ranks exchange which parameters were reached only once. The first
  // backward is reduced after it has ended.
  bool static_graph = false;
  Buffers buffers = Buffers::broadcast;
  MixedPrecision mixed_precision = {};
  // Off: the parameters and buffers are equal on all ranks already, when the module is wrapped and in
  // set_group(), and are not made those of rank 0.
  bool init_sync = true;
  // Names of parameters and buffers, as in named_parameters(), that are neither broadcast nor reduced nor
  // converted to another type.
  std::vector<std::string> ignored = {};
  // Names of parameters whose gradients are sparse, other than those of torch::nn::Embedding and EmbeddingBag
  // with the option `sparse`.
  std::vector<std::string> sparse = {};
};

}  // namespace weft::data_parallel
