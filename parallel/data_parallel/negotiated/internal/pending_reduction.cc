#include <weft/parallel/data_parallel/negotiated/internal/pending_reduction.h>

#include <weft/parallel/collectives/operation/internal/collective_call.h>

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

namespace weft::data_parallel {

using collectives::ReduceOp;

namespace {

// Formats without a stream, because a stream takes longer than all other work for a request.
std::string text_of(double value) {
  std::array<char, 32> text;
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

// The ranks name their devices differently, so that only the type and the place are compared.
std::string place_of(const PendingReduction& pending, const std::vector<c10::Device>& devices) {
  std::string text = c10::DeviceTypeName(pending.tensors.front().device().type(), true);
  if (devices.size() > 1 && pending.place != 0) text += " (device " + std::to_string(pending.place - 1) + ")";
  return text;
}

// ", avg, prescale 2"
std::string call_text(const ReductionCall& call) {
  std::string text = ", " + call.op.name();
  if (call.prescale != 1) text += ", prescale " + text_of(call.prescale);
  if (call.postscale != 1) text += ", postscale " + text_of(call.postscale);
  return text;
}

// "Float[4, 2] Float[2]"
std::string shapes_of(const PendingReduction& pending) {
  std::string text;
  const char* const dtype = c10::toString(pending.tensors.front().scalar_type());
  for (const at::Tensor& tensor : pending.tensors) {
    text += text.empty() ? dtype : std::string(" ") + dtype;
    for (std::int64_t dim = 0; dim < tensor.dim(); ++dim)
      text += (dim == 0 ? "[" : ", ") + std::to_string(tensor.size(dim));
    text += tensor.dim() == 0 ? "[]" : "]";
    if (tensor.is_sparse()) text += " (sparse dimensions: " + std::to_string(tensor.sparse_dim()) + ")";
  }
  return text;
}

ReductionForm form_of(const PendingReduction& pending) {
  const at::Tensor& first = pending.tensors.front();
  ReductionForm form{.dtype = static_cast<std::uint8_t>(first.scalar_type()),
                     .op = static_cast<std::uint8_t>(pending.call.op.kind),
                     .place = static_cast<std::uint8_t>(pending.place)};
  if (pending.is_sparse()) {
    form.sparse_dim = first.sparse_dim();
    form.sizes = first.sizes().vec();
  } else {
    form.sizes = {0};
    for (const at::Tensor& tensor : pending.tensors) form.sizes.front() += tensor.numel();
  }
  return form;
}

}  // namespace

void check_reduction(PendingReduction& pending, const std::vector<c10::Device>& devices) {
  const auto& [name, tensors, call] = std::tie(pending.name, pending.tensors, pending.call);
  const auto refuse = [&](rpc::ErrorKind kind, const std::string& text) {
    throw rpc::Error(kind, "all_reduce of '" + pending.name + "': " + text);
  };
  using enum rpc::ErrorKind;
  if (tensors.empty()) refuse(invalid_argument, "no tensors, expected one or more");
  if (call.op.kind == ReduceOp::Kind::premul_sum)
    refuse(invalid_argument, "the operation is premul_sum: use sum with ReductionCall::prescale");
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined()) refuse(invalid_argument, "an undefined tensor, expected defined tensors");
    const at::Tensor& first = tensors.front();
    if (tensor.layout() != at::kStrided && tensor.layout() != at::kSparse)
      refuse(invalid_argument, "a tensor of the layout " + c10::str(tensor.layout()) +
                                   ", expected a dense or sparse (COO) tensor");
    if (tensor.is_sparse() && tensors.size() > 1)
      refuse(invalid_argument, "a sparse tensor next to others, expected a name for it alone");
    if (tensor.is_sparse() && call.op.kind != ReduceOp::Kind::sum && call.op.kind != ReduceOp::Kind::avg)
      refuse(invalid_argument, call.op.name() + " of a sparse tensor, expected sum or avg");
    if (tensor.is_sparse() && !tensor.is_cpu())
      refuse(unsupported,
             "a sparse tensor on " + tensor.device().str() + ", expected one on cpu: call to_dense()");
    if (tensor.is_sparse() && (tensor.scalar_type() == at::kBool || tensor.sparse_dim() == 0))
      refuse(unsupported,
             std::string("a sparse tensor of ") + c10::toString(tensor.scalar_type()) + " with " +
                 std::to_string(tensor.sparse_dim()) +
                 " sparse dimensions, expected numbers and at least one sparse dimension: call to_dense()");
    if (tensor.device() != first.device())
      refuse(invalid_argument, "tensors on " + first.device().str() + " and " + tensor.device().str() +
                                   ", expected one device");
    if (tensor.scalar_type() != first.scalar_type())
      refuse(invalid_argument, std::string("tensors of ") + c10::toString(first.scalar_type()) + " and " +
                                   c10::toString(tensor.scalar_type()) + ", expected one dtype");
    if (!tensor.is_sparse()) collectives::check_separate("all_reduce of '" + name + "'", tensor);
    if ((call.prescale != 1 || call.postscale != 1) && tensor.scalar_type() == at::kBool)
      refuse(invalid_argument, "factors for a tensor of Bool, expected numbers");
  }
  if (tensors.front().is_cpu()) return;
  const auto found = std::find(devices.begin(), devices.end(), tensors.front().device());
  if (found == devices.end())
    refuse(unsupported, "a tensor on " + tensors.front().device().str() +
                            ", expected one on cpu or on a device of NegotiationOptions::devices");
  pending.place = static_cast<std::size_t>(1 + (found - devices.begin()));
}

ReductionRequest prepare_reduction(PendingReduction& pending, const std::vector<c10::Device>& devices) {
  const at::NoGradGuard no_grad;
  const std::string call = call_text(pending.call), place = place_of(pending, devices);
  if (pending.is_sparse())
    pending.sparse_result = std::exchange(pending.tensors.front(), pending.tensors.front().coalesce());
  for (const at::Tensor& tensor : pending.tensors) {
    pending.bytes += tensor.is_sparse() ? tensor._values().nbytes() : tensor.nbytes();
    scale(tensor, pending.call.prescale);
  }
  pending.written = training::CommunicationStream::written(pending.tensors.front().device());
  return {.name = pending.name,
          .meaning = shapes_of(pending) + " on " + place + call,
          .kind = c10::toString(pending.tensors.front().scalar_type()) + (" on " + place) + call,
          .bytes = pending.bytes,
          .form = form_of(pending),
          .rows = pending.is_sparse() ? pending.tensors.front()._nnz() : 0};
}

PendingReduction zeros_of(const std::string& name, const ReductionForm& form,
                          const std::vector<c10::Device>& devices) {
  const auto options = at::TensorOptions(static_cast<at::ScalarType>(form.dtype))
                           .device(form.place == 0 ? at::kCPU : devices.at(form.place - 1U));
  PendingReduction pending{name, {}, {.op = {static_cast<ReduceOp::Kind>(form.op)}}, {}};
  pending.place = form.place;
  pending.is_zero = true;
  if (form.sparse_dim == 0) {
    pending.tensors = {at::zeros(form.sizes, options)};
  } else {
    std::vector<std::int64_t> values(form.sizes.begin() + form.sparse_dim, form.sizes.end());
    values.insert(values.begin(), 0);
    pending.tensors = {at::sparse_coo_tensor(at::empty({form.sparse_dim, 0}, options.dtype(at::kLong)),
                                             at::empty(values, options), form.sizes, options)
                           .coalesce()};
    pending.sparse_result = pending.tensors.front();
  }
  for (const at::Tensor& tensor : pending.tensors)
    if (!tensor.is_sparse()) pending.bytes += tensor.nbytes();
  pending.written = training::CommunicationStream::written(pending.tensors.front().device());
  return pending;
}

void scale(const at::Tensor& tensor, double factor) {
  if (factor == 1) return;
  const at::NoGradGuard no_grad;
  const at::Tensor values = tensor.is_sparse() ? tensor._values() : tensor;
  if (at::isIntegralType(values.scalar_type(), false))
    values.copy_(values.to(at::kDouble).mul_(factor));
  else
    values.mul_(factor);
}

}  // namespace weft::data_parallel
