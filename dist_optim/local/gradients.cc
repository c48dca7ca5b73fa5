#include <weft/dist_optim/local/gradients.h>
#include <weft/rpc/core/error.h>

#include <set>
#include <sstream>
#include <utility>

#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

namespace weft::dist_optim {
namespace {

template <typename Value>
std::string text(const Value& value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

void check_gradient(const Parameter& parameter, const at::Tensor& gradient, bool sparse) {
  const at::Tensor& tensor = parameter.tensor;
  auto differs = [&](const char* what, const std::string& expected, const std::string& found) {
    throw rpc::Error(
        rpc::ErrorKind::invalid_argument,
        "the gradient of parameter " + parameter.name + " has " + what + " " + found + ", not " + expected);
  };
  if (gradient.sizes() != tensor.sizes()) differs("shape", text(tensor.sizes()), text(gradient.sizes()));
  if (gradient.scalar_type() != tensor.scalar_type()) {
    differs("dtype", text(tensor.scalar_type()), text(gradient.scalar_type()));
  }
  if (gradient.device() != tensor.device()) differs("device", text(tensor.device()), text(gradient.device()));
  if (gradient.layout() == at::kStrided || (sparse && gradient.layout() == at::kSparse)) return;
  throw rpc::Error(rpc::ErrorKind::invalid_argument, "the gradient of parameter " + parameter.name +
                                                         " has layout " + text(gradient.layout()) +
                                                         ", which its optimizer does not take");
}

}  // namespace

std::vector<Parameter> parameters_of(const torch::nn::Module& module) {
  std::vector<Parameter> parameters;
  std::set<const void*> seen;
  for (const auto& item : module.named_parameters()) {
    if (!item.value().defined() || !item.value().requires_grad()) continue;
    if (seen.insert(item.value().unsafeGetTensorImpl()).second)
      parameters.push_back({item.key(), item.value()});
  }
  return parameters;
}

void check_parameters(const std::vector<Parameter>& parameters) {
  std::map<const void*, std::vector<const Parameter*>> by_storage;
  for (const Parameter& parameter : parameters) {
    const at::Tensor& tensor = parameter.tensor;
    if (!tensor.defined())
      throw rpc::Error(rpc::ErrorKind::invalid_argument, "parameter " + parameter.name + " is undefined");
    if (!tensor.is_leaf())
      throw rpc::Error(rpc::ErrorKind::invalid_argument,
                       "parameter " + parameter.name + " is not a leaf of the autograd graph");
    if (tensor.layout() != at::kStrided)
      throw rpc::Error(rpc::ErrorKind::invalid_argument, "parameter " + parameter.name + " is not dense");
    auto& neighbours = by_storage[tensor.storage().unsafeGetStorageImpl()];
    for (const Parameter* other : neighbours) {
      if (tensor.numel() == 0 || other->tensor.numel() == 0) continue;
      if (at::get_overlap_status(tensor, other->tensor) != at::MemOverlapStatus::No) {
        throw rpc::Error(rpc::ErrorKind::invalid_argument,
                         "parameters " + other->name + " and " + parameter.name + " share elements");
      }
    }
    neighbours.push_back(&parameter);
  }
}

void check_gradients(const std::vector<Parameter>& parameters, const Gradients& gradients, bool sparse) {
  for (const auto& [index, gradient] : gradients) {
    if (index >= parameters.size()) {
      throw rpc::Error(rpc::ErrorKind::invalid_argument,
                       "there is a gradient for parameter number " + std::to_string(index) +
                           ", but there are only " + std::to_string(parameters.size()) + " parameters");
    }
    if (gradient.defined()) check_gradient(parameters[index], gradient, sparse);
  }
}

void add_gradients(Gradients& sum, const Gradients& more) {
  at::NoGradGuard no_grad;
  for (const auto& [index, gradient] : more) {
    if (!gradient.defined()) continue;
    at::Tensor& total = sum[index];
    // Out of place: the tensors belong to the passes. A dense tensor comes first: sparse + dense is not
    // defined.
    if (!total.defined()) {
      total = gradient;
    } else if (total.is_sparse() && !gradient.is_sparse()) {
      total = gradient + total;
    } else {
      total = total + gradient;
    }
  }
}

}  // namespace weft::dist_optim
