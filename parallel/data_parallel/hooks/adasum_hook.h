// AdasumHook: combines the gradients of the ranks so that large batches need no smaller learning rate.
//
// Adasum (Maleki et al., 2021). Two gradients a and b of one parameter become
//   (1 - a.b / (2 |a|^2)) a + (1 - a.b / (2 |b|^2)) b,
// which is their sum if they are orthogonal, and their average if they are equal. Pairs of ranks combine
// their gradients, then pairs of pairs, and so on: log2(R) exchanges of whole buckets. All ranks get the same
// bits. Dot products are in float64; complex gradients count as pairs of real numbers. Stateless between
// iterations. Not thread-safe.
#pragma once

#include <weft/parallel/data_parallel/hooks/bucket_memory.h>
#include <weft/parallel/data_parallel/hooks/communication_hook.h>

namespace weft::data_parallel {

class WEFT_EXPORT AdasumHook final : public CommunicationHook {
 public:
  // Throws invalid_argument if the number of ranks is not a power of two. run() throws the same error.
  static void expect_ranks(int ranks);
  std::optional<rpc::Future<void>> run(const collectives::Group& group, GradientBucket& bucket,
                                       int step) override;

 private:
  BucketMemory<at::Tensor> received_;  // from the partner
};

}  // namespace weft::data_parallel
