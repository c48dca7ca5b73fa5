#include <weft/parallel/elastic/internal/tensor_memory.h>

#include <weft/rpc/core/error.h>

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <string>

namespace weft::elastic::detail {

bool same_form(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() && b.defined() && a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
         a.device() == b.device() && a.layout() == b.layout() &&
         (a.layout() != at::kStrided || a.strides() == b.strides());
}

at::Tensor copy_into(at::Tensor memory, const at::Tensor& from) {
  const c10::NoGradGuard no_grad;
  if (!from.defined()) return {};
  if (!same_form(memory, from)) return from.detach().clone();
  return memory.copy_(from.detach());
}

void TensorMemory::store(const std::vector<at::Tensor>& live) {
  copies_.resize(live.size());
  for (std::size_t i = 0; i < live.size(); ++i) copies_[i] = copy_into(copies_[i], live[i]);
}

void TensorMemory::load(const std::vector<at::Tensor>& live) const {
  const c10::NoGradGuard no_grad;
  if (live.size() != copies_.size())
    throw rpc::Error(rpc::ErrorKind::failed_precondition,
                     "elastic::State: " + std::to_string(live.size()) + " tensors, expected the " +
                         std::to_string(copies_.size()) + " of the commit");
  for (std::size_t i = 0; i < live.size(); ++i)
    if (copies_[i].defined()) live[i].detach().copy_(copies_[i]);
}

}  // namespace weft::elastic::detail
