// Autocast: operators compute in a narrower floating-point type where that is safe, as torch.autocast does.
//
//   at::Tensor loss;
//   {
//     const data_parallel::Autocast autocast(at::kCPU, at::kBFloat16);
//     loss = torch::cross_entropy_loss(ddp.forward(images), labels);
//   }
//   loss.backward();   // outside of the guard
//
// LibTorch decides for each operator: products of matrices and convolutions in the narrow type, losses and
// norms in float32, others in the type of their inputs. Parameters keep their type, and so do their
// gradients. LibTorch keeps converted parameters until the outermost guard ends: an optimizer steps outside
// of it.
//
// The state belongs to the thread that creates the guard. Guards may be nested and end in reverse order.
#pragma once

#include <weft/rpc/core/export.h>

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <optional>

namespace weft::data_parallel {

class WEFT_EXPORT Autocast {
 public:
  // dtype: nullopt is LibTorch's type for the device (bfloat16 on the CPU, float16 on a GPU). enabled: false
  // switches an outer guard off.
  explicit Autocast(at::DeviceType device, std::optional<at::ScalarType> dtype = std::nullopt,
                    bool enabled = true);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  const at::DeviceType device_;
  const bool was_enabled_;
  const at::ScalarType dtype_before_;
};

}  // namespace weft::data_parallel
