// ring_attention: attention over a sequence that is split over the ranks of a group (context parallel; Liu et
// al., Ring Attention with Blockwise Transformers, 2023).
//
//   RingAttention attention(mesh.group("context"), {.causal = true});
//   at::Tensor output = attention(query, key, value);     // of this rank's part of the sequence
//
// Each rank sends keys and values to the next rank. In each step a rank computes the attention of its queries
// to the keys that it has, while the next keys are in flight, and merges the results by the logarithms of
// their sums of exponentials. Backward passes keys and values around the ring again, with their gradients.
// The result is that of scaled_dot_product_attention over the whole sequence.
//
// A rank keeps its own queries, keys, values and outputs for backward, and holds the scores of one step:
// [batch, heads, part, part]. All parts of the sequence have the same length and are in the order of the
// ranks. With `causal`, a rank skips the keys after its queries, so the last rank has the most work.
//
// Messages are point-to-point (Group::batch) in this group. Do not send other messages with the tags 0 and 1
// in the group during a call. On a device, call group.prepare(device) first. On the CPU, calls block. Scores
// are computed in float32 or float64, also under autocast. invalid_argument: shapes or types do not agree. If
// the ranks have different shapes, or a message fails, forward or backward fails, and the group is aborted
// with the error. unsupported: backward with create_graph. Thread-safety: one call at a time.
#pragma once

#include <weft/parallel/collectives/group.h>

#include <memory>
#include <optional>

namespace weft::tensor_parallel {

class OverlappedGroup;

// Options for masking and scaling the scores. They must be equal on all ranks.
struct RingAttentionOptions {
  bool causal = false;               // a position attends to itself and to earlier positions
  std::optional<double> scale = {};  // of the products; nullopt: 1 / sqrt(features)
};

class WEFT_EXPORT RingAttention {
 public:
  // All ranks call it, and it blocks. invalid_argument on all ranks: the options differ.
  explicit RingAttention(const collectives::Group& group, RingAttentionOptions options = {});

  // query, key, value: [batch, heads, part, features] of one type, with the same shapes on all ranks; `value`
  // may have another number of features. Returns the attention of this rank's queries to the whole sequence.
  at::Tensor operator()(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) const;

 private:
  const RingAttentionOptions options_;
  std::shared_ptr<OverlappedGroup> ranks_;
};

}  // namespace weft::tensor_parallel
