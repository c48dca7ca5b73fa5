#include <weft/dist_optim/local/internal/row_tensors.h>
#include <weft/rpc/core/error.h>

#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

namespace weft::dist_optim {
namespace {

[[noreturn]] void refuse_tensor(const char* what, const char* wanted, const at::Tensor& found) {
  std::ostringstream text;
  text << "embedding: " << what << ": expected " << wanted << ", found ";
  if (found.defined()) {
    text << found.scalar_type() << found.sizes() << " on " << found.device();
  } else {
    text << "an undefined tensor";
  }
  throw rpc::Error(rpc::ErrorKind::invalid_argument, text.str());
}

bool is_plain(const at::Tensor& tensor, at::ScalarType type) {
  return tensor.defined() && tensor.scalar_type() == type && tensor.device().is_cpu() &&
         tensor.layout() == at::kStrided && tensor.is_contiguous();
}

template <class T>
at::Tensor copied(std::span<const T> values, at::IntArrayRef sizes, at::ScalarType type) {
  at::Tensor tensor = at::empty(sizes, at::TensorOptions().dtype(type));
  if (!values.empty()) std::memcpy(tensor.mutable_data_ptr(), values.data(), values.size_bytes());
  return tensor;
}

}  // namespace

std::span<const std::int64_t> ids_in(const at::Tensor& ids) {
  if (!is_plain(ids, at::kLong)) refuse_tensor("ids", "a contiguous int64 tensor on the CPU", ids);
  return {ids.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(ids.numel())};
}

std::span<const float> floats_in(const at::Tensor& tensor, std::size_t rows, std::size_t width,
                                 const char* what) {
  if (!is_plain(tensor, at::kFloat) || tensor.dim() != 2 ||
      tensor.size(0) != static_cast<std::int64_t>(rows) ||
      tensor.size(1) != static_cast<std::int64_t>(width)) {
    const std::string wanted =
        "a contiguous float tensor [" + std::to_string(rows) + ", " + std::to_string(width) + "] on the CPU";
    refuse_tensor(what, wanted.c_str(), tensor);
  }
  return {tensor.const_data_ptr<float>(), rows * width};
}

std::span<const std::uint32_t> ages_in(const at::Tensor& ages, std::size_t rows) {
  if (!is_plain(ages, at::kInt) || ages.numel() != static_cast<std::int64_t>(rows))
    refuse_tensor("ages of rows", "a contiguous int32 tensor, one for each id", ages);
  return {static_cast<const std::uint32_t*>(ages.const_data_ptr()), rows};
}

at::Tensor tensor_of(std::span<const std::int64_t> ids) {
  return copied(ids, {static_cast<std::int64_t>(ids.size())}, at::kLong);
}

at::Tensor tensor_of(std::span<const std::uint32_t> ages) {
  return copied(ages, {static_cast<std::int64_t>(ages.size())}, at::kInt);
}

at::Tensor tensor_of(std::span<const float> values, std::size_t width) {
  const auto columns = static_cast<std::int64_t>(width);
  return copied(values, {static_cast<std::int64_t>(values.size()) / columns, columns}, at::kFloat);
}

at::Tensor row_gradient(const at::Tensor& ids, const at::Tensor& gradients) {
  const auto all = ids_in(ids);
  const std::int64_t width = gradients.defined() && gradients.dim() == 2 ? gradients.size(1) : 1;
  floats_in(gradients, all.size(), static_cast<std::size_t>(width), "gradients of rows");
  constexpr std::int64_t no_bound = std::int64_t{1} << 32;
  // Sorted here: LibTorch's coalesce() writes before the values' first row where the least index is -1.
  std::vector<std::int64_t> order(all.size());
  std::iota(order.begin(), order.end(), std::int64_t{0});
  const auto id_at = [&](std::int64_t i) { return all[static_cast<std::size_t>(i)]; };
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return id_at(a) < id_at(b); });
  const auto same =
      std::adjacent_find(order.begin(), order.end(), [&](auto a, auto b) { return id_at(a) == id_at(b); });
  if (same != order.end())
    throw rpc::Error(rpc::ErrorKind::invalid_argument, "embedding: a step has two gradients of row " +
                                                           std::to_string(id_at(*same)) +
                                                           ", expected one of each row");
  const at::Tensor sorted = tensor_of(order);
  return at::_sparse_coo_tensor_unsafe(ids.reshape(-1).index_select(0, sorted).unsqueeze(0),
                                       gradients.index_select(0, sorted), {no_bound, width})
      ._coalesced_(true);
}

}  // namespace weft::dist_optim
