// plan_buckets: assigns parameters to buckets, whose gradients are reduced in one collective each.
//
// A pure function, the same on all ranks for equal arguments. It visits the parameters in the given order and
// fills one bucket per dtype and device at a time. A bucket is closed when it has reached its cap, so it may
// exceed the cap by a part of its last parameter. A parameter with sparse gradients has a bucket to itself.
// The assignment equals that of c10d::compute_bucket_assignment_by_size, with which a test compares it.
#pragma once

#include <weft/rpc/core/export.h>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace weft::data_parallel {

// The properties of a parameter on which the plan depends.
struct ParameterSpec {
  std::size_t bytes = 0;
  c10::ScalarType dtype = c10::ScalarType::Float;
  c10::Device device = c10::Device(c10::kCPU);
  bool sparse = false;  // its gradients are sparse tensors
};

// The buckets in the order in which they are reduced. Each lists its parameters by index.
using BucketPlan = std::vector<std::vector<std::size_t>>;

// caps: bytes of the first bucket, of the second and so on; the last cap applies to all further buckets. Each
// dtype and device starts at the first cap. order: a permutation of the parameters. Buckets are in the order
// in which they were closed. Buckets that did not reach their caps follow, in the order of their first
// parameters.
// invalid_argument: no caps, or an order that is not a permutation.
WEFT_EXPORT BucketPlan plan_buckets(std::span<const ParameterSpec> parameters,
                                    std::span<const std::size_t> caps, std::span<const std::size_t> order);

// Splits the last bucket of a plan: as many of its last parameters as fit into `bytes` become a separate
// bucket. When the last bucket becomes ready, backward is almost complete and cannot hide the reduction.
// After the split, only a short reduction remains. The last bucket is not split if all of its parameters fit
// into `bytes`, or if its last parameter alone does not fit.
WEFT_EXPORT BucketPlan split_last_bucket(BucketPlan plan, std::span<const ParameterSpec> parameters,
                                         std::size_t bytes);

// The indices of the parameters from the last to the first. A program uses this order before the first
// backward, because backward usually reaches the last layers first.
WEFT_EXPORT std::vector<std::size_t> reverse_order(std::size_t parameters);

}  // namespace weft::data_parallel
