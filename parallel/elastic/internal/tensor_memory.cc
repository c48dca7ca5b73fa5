#include <weft/parallel/elastic/internal/tensor_memory.h>

#include <weft/rpc/core/error.h>

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <cstring>
#include <string>

namespace weft::elastic::detail {
namespace {

// Whether a copy between the tensors copies bytes unchanged.
bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  return same_form(a, b) && a.device().is_cpu() && a.layout() == at::kStrided && !a.is_quantized() &&
         a.is_non_overlapping_and_dense() && a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg();
}

// Up to this size the dispatch of ATen's operator takes a part of the time that matters, and one thread is
// enough.
constexpr std::size_t small_bytes = 256 << 10;

void copy_contents(const at::Tensor& to, const at::Tensor& from) {
  if (!same_bytes(to, from) || from.nbytes() > small_bytes) {
    const c10::NoGradGuard no_grad;
    to.detach().copy_(from.detach());
    return;
  }
  if (from.numel() != 0) std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes());
  if (!to.is_inference()) to.unsafeGetTensorImpl()->bump_version();  // as copy_() does
}

}  // namespace

bool same_form(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() && b.defined() && a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
         a.device() == b.device() && a.layout() == b.layout() &&
         (a.layout() != at::kStrided || a.strides() == b.strides());
}

at::Tensor copy_into(at::Tensor memory, const at::Tensor& from) {
  if (!from.defined()) return {};
  if (!same_form(memory, from)) {
    const c10::NoGradGuard no_grad;
    return from.detach().clone();
  }
  copy_contents(memory, from);
  return memory;
}

void TensorMemory::store(const std::vector<at::Tensor>& live) {
  copies_.resize(live.size());
  for (std::size_t i = 0; i < live.size(); ++i) copies_[i] = copy_into(copies_[i], live[i]);
}

void TensorMemory::load(const std::vector<at::Tensor>& live) const {
  if (live.size() != copies_.size())
    throw rpc::Error(rpc::ErrorKind::failed_precondition,
                     "elastic::State: " + std::to_string(live.size()) + " tensors, expected the " +
                         std::to_string(copies_.size()) + " of the commit");
  for (std::size_t i = 0; i < live.size(); ++i)
    if (copies_[i].defined()) copy_contents(live[i], copies_[i]);
}

}  // namespace weft::elastic::detail
