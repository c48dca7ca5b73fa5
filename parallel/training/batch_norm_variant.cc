#include <weft/parallel/training/batch_norm_variant.h>

#include <torch/nn/modules/container/sequential.h>

namespace weft::training {
namespace {

void replace_children(torch::nn::Module& module, const std::string& prefix, const std::string& operation,
                      const std::string& type,
                      const std::function<torch::nn::AnyModule(const torch::nn::Module&)>& replacement,
                      std::vector<std::string>& replaced) {
  auto* const sequence = module.as<torch::nn::SequentialImpl>();
  std::ptrdiff_t place = -1;
  for (const auto& child : module.named_children()) {
    ++place;
    const std::string name = prefix + child.key();
    torch::nn::AnyModule made = replacement(*child.value());
    if (made.is_empty()) {
      replace_children(*child.value(), name + ".", operation, type, replacement, replaced);
      continue;
    }
    if (sequence == nullptr)
      throw rpc::Error(rpc::ErrorKind::failed_precondition,
                       operation + ": " + name +
                           " is a member of a module that is not a Sequential, and cannot be replaced from "
                           "outside: declare it as a " +
                           type);
    module.replace_module(child.key(), made.ptr());
    *(sequence->begin() + place) = std::move(made);
    replaced.push_back(name);
  }
}

}  // namespace

std::vector<std::int64_t> reduced_dims(const at::Tensor& input) {
  std::vector<std::int64_t> dims;
  for (std::int64_t dim = 0; dim < input.dim(); ++dim)
    if (dim != 1) dims.push_back(dim);
  return dims;
}

std::vector<std::string> replace_in_sequentials(
    torch::nn::Module& module, const std::string& operation, const std::string& type,
    const std::function<torch::nn::AnyModule(const torch::nn::Module&)>& replacement) {
  std::vector<std::string> replaced;
  replace_children(module, "", operation, type, replacement, replaced);
  return replaced;
}

}  // namespace weft::training
