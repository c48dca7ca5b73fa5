// ring_attention: attention over a sequence that is split over the ranks of a group (context parallel; Liu et
// al., Ring Attention with Blockwise Transformers, 2023).
//
//   RingAttention attention(mesh.group("context"), {.causal = true});
//   at::Tensor output = attention(query, key, value);     // of this rank's part of the sequence
//
// Keys and values travel from rank to rank. In each step a rank computes the attention of its queries to the
// keys that it has at the time, while the next ones are in flight, and merges the results by the logarithms
// of their sums of exponentials. Backward sends keys and values around again, and their gradients with them.
// The result is that of scaled_dot_product_attention over the whole sequence.
//
// A rank keeps its own queries, keys, values and outputs for backward, and holds the scores of one step:
// [batch, heads, part, part]. Equal parts of the sequence are in the order of the ranks. With `causal` a rank
// skips the keys that come after its queries, so that the last rank computes most.
//
// Messages are point-to-point (Group::batch), of this group, which sends no others meanwhile with the tags 0
// and 1; on a device, call group.prepare(device) first. Calls block on the CPU. Scores are computed in
// float32 or float64, also under autocast. invalid_argument: shapes or types that do not agree. If the ranks
// have different shapes, or a message fails, forward or backward fails, and the group is aborted with the
// error. unsupported: backward with create_graph. Thread-safety: one call at a time.
#pragma once

#include <weft/parallel/collectives/group.h>

#include <memory>
#include <optional>

namespace weft::tensor_parallel {

class OverlappedGroup;

// How scores are masked and scaled. The same on all ranks.
struct RingAttentionOptions {
  bool causal = false;               // each position sees itself and those before it
  std::optional<double> scale = {};  // of the products; nullopt: 1 / sqrt(features)
};

class WEFT_EXPORT RingAttention {
 public:
  // All ranks call it, and it blocks; invalid_argument on all ranks: the options differ.
  explicit RingAttention(const collectives::Group& group, RingAttentionOptions options = {});

  // [batch, heads, part, features] of one type, with the same parts on all ranks; values may have another
  // number of features. Returns the attention of this rank's queries to the whole sequence.
  at::Tensor operator()(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) const;

 private:
  const RingAttentionOptions options_;
  std::shared_ptr<OverlappedGroup> ranks_;
};

}  // namespace weft::tensor_parallel
