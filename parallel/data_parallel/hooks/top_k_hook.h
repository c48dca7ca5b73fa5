// TopKHook: sends the elements of each gradient that have the largest absolute values.
//
// Each rank adds what it has not sent yet (its residual) to the gradient, sends the k largest elements of the
// sum with their positions in one all_gather, and keeps the rest as the next residual. The result is the sum
// of the elements that all ranks send, divided by the number of ranks. k is computed for each parameter, so
// that results do not depend on the bucket plan. With R ranks, each rank receives R k elements, and for each
// of them a position (4 bytes; 8 bytes in buckets of 2^31 elements or more): a ratio below 1 / R saves bytes.
//
// If no rank computes a gradient of a parameter in an iteration, the iteration may still send a part of the
// parameter's residual. This part is lost. Source: Aji and Heafield, 2017; Lin et al., Deep Gradient
// Compression, 2018. Not thread-safe.
#pragma once

#include <weft/parallel/data_parallel/hooks/bucket_memory.h>
#include <weft/parallel/data_parallel/hooks/communication_hook.h>
#include <weft/parallel/data_parallel/hooks/residuals.h>

#include <torch/serialize/archive.h>

#include <cstdint>
#include <vector>

namespace weft::data_parallel {

// Options of a TopKHook. They must be equal on all ranks.
struct TopKOptions {
  double ratio = 0.01;             // k = ratio * number of elements of the parameter, rounded up
  bool use_error_feedback = true;  // true: keep the rest as the next residual; false: drop it
};

class WEFT_EXPORT TopKHook final : public CommunicationHook {
 public:
  // invalid_argument: the ratio is not in (0, 1].
  explicit TopKHook(const TopKOptions& options = {});

  std::optional<rpc::Future<void>> run(const collectives::Group& group, GradientBucket& bucket,
                                       int step) override;

  // Call these between iterations. Residuals differ between the ranks: each rank saves and loads its own
  // state.
  void save(torch::serialize::OutputArchive& archive) const { residuals_.save(archive); }
  void load(torch::serialize::InputArchive& archive) { residuals_.load(archive); }

 private:
  // The elements of one gradient.
  struct Part {
    std::int64_t begin, count;  // their range in the bucket's buffer
    std::int64_t chosen, k;     // the sent elements: the index of the first in the message, and their number
  };
  struct Bucket {
    std::vector<Part> parts;               // by gradient
    at::Tensor flat;                       // laid out like the buffer; after choose(): the elements not sent
    std::vector<at::Tensor> sums;          // views of `flat`, by gradient
    at::Tensor gathered, own;              // [ranks, bytes]; the row of this rank
    std::int64_t elements = 0;             // the number that a rank sends
    at::ScalarType positions = at::kLong;  // the type of the positions
  };
  void plan(const collectives::Group& group, const GradientBucket& content, Bucket& bucket) const;
  void choose(const GradientBucket& content, Bucket& bucket);

  const TopKOptions options_;
  Residuals residuals_;
  BucketMemory<Bucket> buckets_;
};

}  // namespace weft::data_parallel
