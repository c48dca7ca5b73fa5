// CastHook: sends gradients as a narrower floating-point type: float16, bfloat16, or float32 for float64.
//
// Without an inner hook, the narrow values are all-reduced. An inner hook gets buckets of the narrow type:
// CastHook(at::kHalf, std::make_shared<PowerSgdHook>(...)) sends the matrices P and Q of PowerSGD as float16.
// Complex gradients are passed to the inner hook as pairs of real numbers, in a last dimension of size 2.
// Gradients that already have the narrow type are not cast.
//
// Each value is rounded once before and once after the reduction, which adds in float32. In float16, values
// beyond 65504 become infinite: use a smaller loss scale (GradScaler), or bfloat16. If the group exchanges
// messages, GroupOptions::wire_dtype also halves the bytes, and keeps the sums in float32.
#pragma once

#include <weft/parallel/data_parallel/hooks/bucket_memory.h>
#include <weft/parallel/data_parallel/hooks/communication_hook.h>

#include <memory>

namespace weft::data_parallel {

class WEFT_EXPORT CastHook final : public CommunicationHook {
 public:
  // invalid_argument: dtype is not float16, bfloat16 or float32.
  explicit CastHook(at::ScalarType dtype, std::shared_ptr<CommunicationHook> inner = nullptr);

  void begin_iteration() override;
  std::optional<rpc::Future<void>> run(const collectives::Group& group, GradientBucket& bucket,
                                       int step) override;
  std::string name() const override;  // includes the type and the name of the inner hook

 private:
  const at::ScalarType dtype_;
  const std::shared_ptr<CommunicationHook> inner_;
  BucketMemory<GradientBucket> narrow_;  // the narrow buckets
};

}  // namespace weft::data_parallel
