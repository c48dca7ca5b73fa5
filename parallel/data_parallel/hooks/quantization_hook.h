// QuantizationHook: sends gradients as 8-bit integers.
//
// Each rank splits a bucket into blocks and maps the values of a block linearly to 0...255, such that zero
// stays zero. It gathers the integers of all ranks, with a scale and a zero point for each block, in one
// all_gather, and averages them in the gradients' type. For R ranks a rank receives R - 1 bytes per element,
// where a ring all-reduce of float32 receives 8 (R - 1) / R: 8 or more ranks receive more than with an
// all-reduce. The error of an average is at most half a scale, (max - min) / 510 of the block. A block that
// has an infinite or NaN value becomes NaN as a whole, so that GradScaler skips the step.
//
// Complex gradients are quantized as pairs of real numbers. Stateless between iterations. Not thread-safe.
#pragma once

#include <weft/parallel/data_parallel/hooks/communication_hook.h>

#include <cstdint>
#include <vector>

namespace weft::data_parallel {

// The same on all ranks.
struct QuantizationOptions {
  // Elements with one scale. 0: all of a bucket has one scale, which large gradients of one layer then make
  // coarse for the others.
  std::int64_t block = 512;
};

class WEFT_EXPORT QuantizationHook final : public CommunicationHook {
 public:
  // invalid_argument: block < 0.
  explicit QuantizationHook(const QuantizationOptions& options = {});

  std::optional<rpc::Future<void>> run(const collectives::Group& group, GradientBucket& bucket,
                                       int step) override;

 private:
  // What the ranks gather: scales and zero points as float32, then a byte for each element.
  struct Bucket {
    at::Tensor of;             // the bucket's buffer, for which the memory was allocated
    at::Tensor padded;         // blocks x block: the gradients of this rank
    at::Tensor gathered, own;  // ranks x bytes; the row of this rank
  };
  void allocate(const collectives::Group& group, const at::Tensor& buffer, const at::Tensor& values,
                Bucket& bucket) const;

  const QuantizationOptions options_;
  std::vector<Bucket> buckets_;  // by index
};

}  // namespace weft::data_parallel
