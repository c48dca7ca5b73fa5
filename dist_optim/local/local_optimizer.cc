#include <weft/dist_optim/local/local_optimizer.h>

#include <type_traits>

#include <torch/serialize/archive.h>

namespace weft::dist_optim {

// As LibTorch's own options and states: a field that an archive lacks keeps its value.
void read_fields(torch::serialize::InputArchive& archive, const Fields& fields) {
  for (const Field& field : fields) {
    c10::IValue value;
    if (!archive.try_read(field.name, value)) continue;
    std::visit([&](auto* to) { *to = value.to<std::remove_pointer_t<decltype(to)>>(); }, field.value);
  }
}

void write_fields(torch::serialize::OutputArchive& archive, const Fields& fields) {
  for (const Field& field : fields)
    std::visit([&](const auto* from) { archive.write(field.name, c10::IValue(*from)); }, field.value);
}

void require_dense(const at::Tensor& gradient, const char* name) {
  TORCH_CHECK(!gradient.is_sparse(), name, " does not support sparse gradients");
}

at::Tensor real_parts(const at::Tensor& tensor) {
  return tensor.is_complex() ? at::view_as_real(tensor.resolve_conj()) : tensor;
}

}  // namespace weft::dist_optim
