#include <weft/dist_optim/local/internal/local_optimizer.h>

namespace weft::dist_optim {

void no_archives() {
  TORCH_CHECK(false,
              "this optimizer has no LibTorch archive; save its OptimizerState (ShadowLeaves::state())");
}

void require_dense(const at::Tensor& gradient, const char* name) {
  TORCH_CHECK(!gradient.is_sparse(), name, " does not support sparse gradients");
}

at::Tensor real_parts(const at::Tensor& tensor) {
  return tensor.is_complex() ? at::view_as_real(tensor.resolve_conj()) : tensor;
}

}  // namespace weft::dist_optim
