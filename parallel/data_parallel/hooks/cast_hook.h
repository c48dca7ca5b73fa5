// CastHook: sends gradients as a narrower floating-point type: float16, bfloat16, or float32 for float64.
//
// Without an inner hook the narrow values are all-reduced. An inner hook gets buckets of the narrow type:
// CastHook(at::kHalf, std::make_shared<PowerSgdHook>(...)) sends P and Q as float16. It sees complex
// gradients as pairs of real numbers, in a last dimension of size 2. Gradients that have the type are not
// cast.
//
// Each bucket is rounded once before and once after the reduction, which adds up in float32. In float16
// values beyond 65504 become infinite: scale the loss (GradScaler), or use bfloat16. Where the group
// exchanges messages, GroupOptions::wire_dtype halves the bytes as well, and keeps the sums in float32.
#pragma once

#include <weft/parallel/data_parallel/hooks/communication_hook.h>

#include <memory>
#include <vector>

namespace weft::data_parallel {

class WEFT_EXPORT CastHook final : public CommunicationHook {
 public:
  // invalid_argument: the type is not one of these.
  explicit CastHook(at::ScalarType dtype, std::shared_ptr<CommunicationHook> inner = nullptr);

  void begin_iteration() override;
  std::optional<rpc::Future<void>> run(const collectives::Group& group, GradientBucket& bucket,
                                       int step) override;
  std::string name() const override;  // with those of the type and of the inner hook

 private:
  struct Narrow {
    at::Tensor of;  // the bucket's buffer
    GradientBucket bucket;
  };
  const at::ScalarType dtype_;
  const std::shared_ptr<CommunicationHook> inner_;
  std::vector<Narrow> buckets_;  // by index
};

}  // namespace weft::data_parallel
