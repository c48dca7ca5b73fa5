#include <weft/dist_optim/local/gradients.h>
#include <weft/rpc/core/error.h>

#include <cmath>
#include <set>
#include <sstream>
#include <utility>

#include <ATen/Functions.h>
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
                                                         ", which its optimizer does not support");
}

// A sparse gradient's entries count once each: if an index occurs twice, their sum.
at::Tensor values_of(const at::Tensor& gradient) {
  return gradient.is_sparse() ? gradient.coalesce().values() : gradient;
}

template <class Map>
at::Tensor map_values(const at::Tensor& gradient, Map map) {
  if (!gradient.is_sparse()) return map(gradient);
  const at::Tensor sparse = gradient.coalesce();
  return at::_sparse_coo_tensor_unsafe(sparse.indices(), map(sparse.values()), sparse.sizes())
      ._coalesced_(true);
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
    // Out of place: the tensors belong to the passes. A dense tensor must be first: sparse + dense is
    // undefined.
    if (!total.defined()) {
      total = gradient;
    } else if (total.is_sparse() && !gradient.is_sparse()) {
      total = gradient + total;
    } else {
      total = total + gradient;
    }
  }
}

void prepare_gradients(Gradients& gradients, std::size_t passes, const StepOptions& options) {
  at::NoGradGuard no_grad;
  double factor = options.mean && passes > 0 ? 1 / static_cast<double>(passes) : 1;
  if (options.loss_scale) factor /= *options.loss_scale;
  scale_gradients(gradients, factor);
  if (!options.clip_value) return;
  for (auto& [index, gradient] : gradients) {
    if (!gradient.defined()) continue;
    gradient = map_values(gradient, [&](const at::Tensor& values) {
      return values.clamp(-*options.clip_value, *options.clip_value);
    });
  }
}

StepPart measure(const Gradients& gradients, const StepOptions& options) {
  at::NoGradGuard no_grad;
  StepPart part;
  part.none = true;
  std::vector<double> norms;
  for (const auto& [index, gradient] : gradients) {
    if (!gradient.defined()) continue;
    part.none = false;
    if (gradient.numel() == 0) continue;
    const at::Tensor values = values_of(gradient);
    if (values.numel() == 0) continue;
    if (options.loss_scale) part.nonfinite |= !at::isfinite(values).all().item<bool>();
    if (!options.clip_norm) continue;
    norms.push_back(
        (std::isinf(options.norm_type) ? values.abs().max() : values.norm(options.norm_type)).item<double>());
  }
  part.norm = combine_norms(norms, options.norm_type);
  return part;
}

void scale_gradients(Gradients& gradients, double scale) {
  if (scale == 1) return;
  at::NoGradGuard no_grad;
  for (auto& [index, gradient] : gradients) {
    if (gradient.defined())
      gradient = map_values(gradient, [&](const at::Tensor& values) { return values * scale; });
  }
}

}  // namespace weft::dist_optim
