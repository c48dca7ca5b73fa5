#include <weft/rpc/tensor/on_streams.h>

#include <weft/rpc/tensor/staging.h>

#include <ATen/ops/_indices.h>
#include <ATen/ops/_values.h>
#include <ATen/ops/ccol_indices.h>
#include <ATen/ops/col_indices.h>
#include <ATen/ops/crow_indices.h>
#include <ATen/ops/row_indices.h>
#include <ATen/ops/values.h>

#include <algorithm>

namespace weft::tensor {
namespace {

// The dense tensors that hold its elements.
std::vector<at::Tensor> parts_of(const at::Tensor& tensor) {
  switch (tensor.layout()) {
    case at::kSparse:
      return {tensor._indices(), tensor._values()};
    case at::kSparseCsr:
    case at::kSparseBsr:
      return {tensor.crow_indices(), tensor.col_indices(), tensor.values()};
    case at::kSparseCsc:
    case at::kSparseBsc:
      return {tensor.ccol_indices(), tensor.row_indices(), tensor.values()};
    default:
      return {tensor};
  }
}

}  // namespace

void StreamMarks::note(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_cpu()) return;
  const c10::Device device = tensor.device();
  if (std::any_of(marks_.begin(), marks_.end(), [&](const Mark& mark) { return mark.device == device; }))
    return;
  marks_.push_back({device, c10::Event(device.type())});
  marks_.back().reached.record(current_stream(device));
}

void StreamMarks::wait() {
  for (const Mark& mark : marks_) mark.reached.synchronize();
}

void StreamMarks::pass_on(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_cpu()) return;
  for (const Mark& mark : marks_)
    if (mark.device == tensor.device()) mark.reached.block(current_stream(mark.device));
  use_on_current_streams(parts_of(tensor));
}

}  // namespace weft::tensor
