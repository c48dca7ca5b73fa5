#include <weft/parallel/data_parallel/negotiated/internal/pending_reduction.h>

#include <c10/core/GradMode.h>

#include <charconv>

namespace weft::data_parallel {

using collectives::ReduceOp;

namespace {

// Without streams, which take longer than all else that is done for a request.
std::string text_of(double value) {
  std::array<char, 32> text;
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

std::string kind_of(const at::Tensor& tensor, const ReductionCall& call) {
  std::string text = c10::toString(tensor.scalar_type());
  text += ", " + call.op.name();
  if (call.prescale != 1) text += ", prescale " + text_of(call.prescale);
  if (call.postscale != 1) text += ", postscale " + text_of(call.postscale);
  return text;
}

// "Float[4, 2] Float[2], avg"
std::string meaning_of(const PendingReduction& pending, const std::string& kind) {
  std::string text;
  const char* const dtype = c10::toString(pending.tensors.front().scalar_type());
  for (const at::Tensor& tensor : pending.tensors) {
    text += text.empty() ? dtype : std::string(" ") + dtype;
    for (std::int64_t dim = 0; dim < tensor.dim(); ++dim)
      text += (dim == 0 ? "[" : ", ") + std::to_string(tensor.size(dim));
    text += tensor.dim() == 0 ? "[]" : "]";
  }
  return text + kind.substr(std::string_view(dtype).size());
}

}  // namespace

void check_reduction(const PendingReduction& pending) {
  const auto& [name, tensors, call] = std::tie(pending.name, pending.tensors, pending.call);
  const auto refuse = [&](rpc::ErrorKind kind, const std::string& text) {
    throw rpc::Error(kind, "all_reduce of '" + pending.name + "': " + text);
  };
  using enum rpc::ErrorKind;
  if (name.empty()) refuse(invalid_argument, "the name is empty");
  if (tensors.empty()) refuse(invalid_argument, "no tensors, expected one or more");
  if (call.op.kind == ReduceOp::Kind::premul_sum)
    refuse(invalid_argument, "the operation is premul_sum: use sum with ReductionCall::prescale");
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined()) refuse(invalid_argument, "an undefined tensor");
    if (tensor.layout() != at::kStrided)
      refuse(invalid_argument, "a sparse tensor, expected a dense one: call to_dense()");
    if (!tensor.is_cpu())
      refuse(unsupported, "a tensor on " + tensor.device().str() + ", expected one on cpu");
    if (tensor.scalar_type() != tensors.front().scalar_type())
      refuse(invalid_argument, std::string("tensors of ") + c10::toString(tensors.front().scalar_type()) +
                                   " and " + c10::toString(tensor.scalar_type()) + ", expected one dtype");
    if ((call.prescale != 1 || call.postscale != 1) && !tensor.is_floating_point() && !tensor.is_complex())
      refuse(invalid_argument, std::string("factors for a tensor of ") + c10::toString(tensor.scalar_type()) +
                                   ", expected floating point");
  }
}

ReductionRequest request_of(const PendingReduction& pending) {
  const std::string kind = kind_of(pending.tensors.front(), pending.call);
  return {pending.name, meaning_of(pending, kind), kind, pending.bytes};
}

void scale(std::vector<at::Tensor>& tensors, double factor) {
  if (factor == 1) return;
  const at::NoGradGuard no_grad;
  for (at::Tensor& tensor : tensors) tensor.mul_(factor);
}

}  // namespace weft::data_parallel
