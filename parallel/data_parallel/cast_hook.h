// CastHook: sends gradients as a narrower floating-point type, float16 or bfloat16.
//
// Each bucket is rounded once before and once after the reduction, which adds up in float32. In float16
// values beyond 65504 become infinite: scale the loss (GradScaler), or use bfloat16. Where the group
// exchanges messages, GroupOptions::wire_dtype halves the bytes as well, and keeps the sums in float32.
#pragma once

#include <weft/parallel/data_parallel/communication_hook.h>

#include <vector>

namespace weft::data_parallel {

class WEFT_EXPORT CastHook final : public CommunicationHook {
 public:
  // invalid_argument: the type is not float16 or bfloat16.
  explicit CastHook(at::ScalarType dtype);

  std::optional<rpc::Future<void>> run(const collectives::Group& group, GradientBucket& bucket,
                                       int step) override;

 private:
  struct Narrow {
    at::Tensor of;  // the bucket's buffer
    at::Tensor memory;
  };
  at::ScalarType dtype_;
  std::vector<Narrow> buckets_;  // by index
};

}  // namespace weft::data_parallel
