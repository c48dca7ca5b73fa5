#include <weft/parallel/sharded/checkpoint/cpu_copy.h>

#include <weft/rpc/core/error.h>
#include <weft/rpc/tensor/staging.h>

#include <cstring>
#include <utility>

namespace weft::sharded {

void CpuCopy::copy(const std::map<std::string, SlicedTensor>& tensors) {
  auto before = std::exchange(tensors_, {});
  weft::tensor::HostCopies copies;
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor& from = tensor.values;
    if (!from.defined() || from.layout() != at::kStrided || from.dim() != 1)
      throw rpc::Error(
          rpc::ErrorKind::invalid_argument,
          "tensor '" + name + "': the values are " +
              (from.defined() ? c10::str("of the layout ", from.layout(), " with ", from.dim(), " dimensions")
                              : "not defined") +
              ", expected a dense tensor of one dimension");
    const bool on_host = from.device().is_cpu();
    at::Tensor to = before[name].values;
    if (!to.defined() || to.numel() != from.numel() || to.scalar_type() != from.scalar_type())
      to = weft::tensor::host_tensor(from);
    if (!on_host) {
      copies.start(from.detach(), to);
    } else if (from.is_contiguous()) {
      if (from.nbytes() != 0) std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes());
    } else {
      to.copy_(from.detach());
    }
    tensors_[name] = {tensor.sizes, tensor.begin, to, tensor.runs, tensor.of_first_rank};
  }
  copies.finish();
}

}  // namespace weft::sharded
