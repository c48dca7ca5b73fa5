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

// The time at which buckets are reduced, and the thread that reduces them.
enum class Overlap : std::uint8_t {
  automatic,  // `group` or `after`: measured in the first iterations, and the faster one is used
  group,      // during backward, on the threads of the group
  caller,     // during backward, on its thread until the collective has to wait for a rank
  after,      // after backward, on its thread
};

// The exchange of the module's buffers before each forward in training mode.
enum class Buffers : std::uint8_t {
  broadcast,  // rank 0 sends its buffers to all ranks
  average,    // floating-point buffers are averaged; rank 0 sends the others to all ranks
  local,      // no exchange: the ranks' buffers may differ
};

// The types in which forward, backward and the reduction compute. nullopt: no conversion.
struct MixedPrecision {
  // Forward and backward use copies of the floating-point parameters in this type, and floating-point inputs
  // of forward are converted to it. The parameters and their gradients keep their type for the program.
  std::optional<at::ScalarType> parameters = {};
  // Gradients are rounded to this type before the reduction, and sent in it (CastHook).
  std::optional<at::ScalarType> reduction = {};
  // Floating-point buffers are converted to this type permanently when the module is wrapped.
  std::optional<at::ScalarType> buffers = {};
};

struct Options {
  // The maximum bytes of the first bucket, of the second and so on; the last entry applies to all further
  // buckets. The gradients that become ready last have a separate bucket of at most the first entry's size
  // (split_last_bucket).
  std::vector<std::size_t> bucket_bytes = {std::size_t{1} << 20, std::size_t{25} << 20};
  Overlap overlap = Overlap::automatic;
  // The program promises that the graph is the same in every iteration. A parameter may then get its gradient
  // in several parts (re-entrant checkpoints), and the ranks exchange only once which parameters were
  // reached. The buckets of the first backward are reduced after that backward.
  bool static_graph = false;
  Buffers buffers = Buffers::broadcast;
  MixedPrecision mixed_precision = {};
  // true: rank 0 sends its parameters and buffers to all ranks when the module is wrapped and in set_group().
  // false: the program ensures that they are equal on all ranks.
  bool init_sync = true;
  // Names of parameters and buffers, as in named_parameters(), that are neither broadcast nor reduced nor
  // converted to another type.
  std::vector<std::string> ignored = {};
  // Names of parameters whose gradients are sparse, other than those of torch::nn::Embedding and EmbeddingBag
  // with the option `sparse`.
  std::vector<std::string> sparse = {};
};

}  // namespace weft::data_parallel
