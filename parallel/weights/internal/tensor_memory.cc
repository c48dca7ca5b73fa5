#include <weft/parallel/weights/internal/tensor_memory.h>

#include <ATen/EmptyTensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/strides.h>
#include <torch/version.h>

namespace weft::weights {
namespace {

c10::StorageImpl& storage_of(const at::Tensor& parameter) {
  return *parameter.storage().unsafeGetStorageImpl();
}

}  // namespace

at::Tensor without_memory(const at::TensorOptions& options, at::IntArrayRef sizes, at::IntArrayRef strides,
                          const std::string& reason) {
  const std::size_t bytes = at::detail::computeStorageNbytes(sizes, strides, options.dtype().itemsize());
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                       at::DataPtr(nullptr, options.device()),
                                                       /*allocator=*/nullptr, /*resizable=*/false);
  const at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(std::move(storage)), c10::DispatchKeySet(options.computeDispatchKey()), options.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  remove_memory(tensor, reason);
  return tensor;
}

void detach_memory(const at::Tensor& parameter, const at::TensorOptions& options, at::IntArrayRef sizes,
                   const std::string& reason) {
  parameter.set_data(without_memory(options, sizes, c10::contiguous_strides(sizes), reason));
}

void set_memory(const at::Tensor& parameter, const at::Tensor& elements) {
  c10::StorageImpl& storage = storage_of(parameter);
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 15
  storage.clear_data_ptr_access_error_msg_();
#endif
  const auto release = [](void* kept) { delete static_cast<c10::Storage*>(kept); };
  storage.set_data_ptr_noswap(at::DataPtr(elements.mutable_data_ptr(), new c10::Storage(elements.storage()),
                                          release, elements.device()));
}

bool has_memory(const at::Tensor& parameter) {
  return parameter.numel() == 0 || storage_of(parameter)._mutable_data_ptr_no_checks().get() != nullptr;
}

void remove_memory(const at::Tensor& parameter, const std::string& reason) {
  c10::StorageImpl& storage = storage_of(parameter);
  storage.set_data_ptr_noswap(at::DataPtr(nullptr, parameter.device()));
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 15
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(reason);
#else
  (void)reason;  // this LibTorch cannot withdraw the error
#endif
}

}  // namespace weft::weights
