#include <weft/parallel/weights/tensor_form.h>

#include <weft/parallel/weights/internal/dtypes.h>
#include <weft/parallel/weights/internal/tensor_memory.h>
#include <weft/rpc/core/error.h>

#include <c10/util/accumulate.h>

namespace weft::weights {

std::int64_t TensorForm::numel() const { return c10::multiply_integers(sizes); }

bool TensorForm::is_same_as(const TensorForm& other) const {
  return !storage.empty() && storage == other.storage && dtype == other.dtype && sizes == other.sizes &&
         strides == other.strides && offset == other.offset;
}

TensorForms forms_of(const std::map<std::string, at::Tensor>& tensors) {
  TensorForms forms;
  for (const auto& [name, tensor] : tensors) {
    const auto refuse = [&name = name](const std::string& why) {  // clang 14 cannot capture `name` itself
      throw rpc::Error(rpc::ErrorKind::invalid_argument, "'" + name + "' cannot be written: it is " + why);
    };
    if (!tensor.defined()) refuse("not defined");
    if (tensor.layout() != at::kStrided) refuse("not dense");
    TensorForm form{tensor.scalar_type(), tensor.sizes().vec()};
    // A lazy conjugate or negative has other values than its storage, and a meta tensor has none.
    if (tensor.has_storage() && tensor.numel() > 0 && has_memory(tensor) && !tensor.is_conj() &&
        !tensor.is_neg()) {
      form.strides = tensor.strides().vec();
      form.offset = tensor.storage_offset();
      form.storage = std::to_string(reinterpret_cast<std::uintptr_t>(tensor.storage().data()));
    }
    forms.emplace(name, std::move(form));
  }
  return forms;
}

std::string to_text(const TensorForm& form) {
  std::string text = name_of(form.dtype) + " [";
  for (const std::int64_t size : form.sizes) text += (text.back() == '[' ? "" : ", ") + std::to_string(size);
  return text + "]";
}

}  // namespace weft::weights
