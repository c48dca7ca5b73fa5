// Autocast: operators compute in a narrower floating-point type where that is safe, as torch.autocast does.
//
//   at::Tensor loss;
//   {
//     const training::Autocast autocast(at::kCPU, at::kBFloat16);
//     loss = torch::cross_entropy_loss(ddp.forward(images), labels);
//   }
//   loss.backward();   // outside of the guard
//
// LibTorch selects the type for each operator: matrix products and convolutions compute in the narrow type,
// losses and norms in float32, other operators in the type of their inputs. Parameters keep their type, and
// so do their gradients. LibTorch caches converted parameters until the outermost guard is destroyed, so
// optimizers must step outside of the guards.
//
// A guard affects the thread that creates it. Guards may be nested; destroy them in reverse order.
#pragma once

#include <weft/rpc/core/export.h>

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <optional>

namespace weft::training {

class WEFT_EXPORT Autocast {
 public:
  // dtype: the narrow type; nullopt: LibTorch's default for the device (bfloat16 on the CPU, float16 on a
  // GPU). enabled: false disables autocast within an outer guard.
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

}  // namespace weft::training
