// QuantizationHook: sends gradients as 8-bit integers.
//
// Each rank splits a bucket into blocks and maps the values of a block linearly to 0...255, such that zero
// stays zero. It gathers the integers of all ranks, with a scale and a zero point for each block, in one
// all_gather, and averages them in the gradients' type. With R ranks, a rank receives R - 1 bytes per
// element; in a ring all-reduce of float32 it receives 8 (R - 1) / R bytes. So with more than 8 ranks, a rank
// receives more bytes than in an all-reduce. The scale of a block is (max - min) / 255. The error of an
// average is at most half a scale. If a block has an infinite or NaN value, the whole block becomes NaN, so
// that a program with a GradScaler skips the step.
//
// Complex gradients are quantized as pairs of real numbers. Stateless between iterations. Not thread-safe.
#pragma once

#include <weft/parallel/data_parallel/hooks/bucket_memory.h>
#include <weft/parallel/data_parallel/hooks/communication_hook.h>

#include <cstdint>

namespace weft::data_parallel {

// The options must be equal on all ranks.
struct QuantizationOptions {
  // The number of elements with one scale. 0: one scale for a whole bucket, so that large gradients of one
  // layer reduce the precision of all others.
  std::int64_t block = 512;
};

class WEFT_EXPORT QuantizationHook final : public CommunicationHook {
 public:
  // invalid_argument: block < 0.
  explicit QuantizationHook(const QuantizationOptions& options = {});

  std::optional<rpc::Future<void>> run(const collectives::Group& group, GradientBucket& bucket,
                                       int step) override;

 private:
  // The ranks gather scales and zero points as float32, followed by one byte for each element.
  struct Bucket {
    at::Tensor padded;         // blocks x block: the gradients of this rank
    at::Tensor gathered, own;  // ranks x bytes; the row of this rank
  };
  void allocate(const collectives::Group& group, const at::Tensor& values, Bucket& bucket) const;

  const QuantizationOptions options_;
  BucketMemory<Bucket> buckets_;
};

}  // namespace weft::data_parallel
