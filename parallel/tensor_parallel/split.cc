#include <weft/parallel/tensor_parallel/split.h>

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <algorithm>

namespace weft::tensor_parallel {

std::int64_t divide(const collectives::Group& group, std::int64_t size, const std::string& what) {
  if (size < 1 || size % group.size() != 0)
    throw rpc::Error(rpc::ErrorKind::invalid_argument,
                     what + ": " + std::to_string(size) + " cannot be split over the " +
                         std::to_string(group.size()) + " ranks of '" + group.name() +
                         "', expected a multiple of " + std::to_string(group.size()) +
                         ": change the size or use another number of ranks");
  return size / group.size();
}

at::Tensor Split::part_of(const at::Tensor& whole) const {
  return whole.unflatten(dim, {blocks, size / blocks})
      .narrow(dim + 1, begin(), length())
      .flatten(dim, dim + 1)
      .clone(at::MemoryFormat::Contiguous);
}

at::Tensor SplitModule::register_split(const std::string& name, const at::Tensor& whole, Split split) {
  const at::NoGradGuard no_grad;
  const at::Tensor part = split.part_of(whole);
  splits_.emplace_back(name, std::move(split));
  return register_parameter(name, part);
}

std::vector<Placement> placements(const torch::nn::Module& module) {
  std::vector<Placement> all;
  const auto add = [&all](const std::string& prefix, const torch::nn::Module& owner) {
    const auto* split_module = dynamic_cast<const SplitModule*>(&owner);
    for (const auto& parameter : owner.named_parameters(/*recurse=*/false)) {
      auto found = std::find_if(all.begin(), all.end(), [&](const Placement& each) {
        return each.tensor.is_same(parameter.value());
      });
      if (found == all.end()) found = all.insert(found, {prefix + parameter.key(), parameter.value(), {}});
      // A tied parameter may have been found in a module that does not know about the split.
      if (split_module == nullptr || !found->splits.empty()) continue;
      for (const auto& [name, split] : split_module->splits())
        if (name == parameter.key()) found->splits.push_back(split);
    }
  };
  add("", module);
  for (const auto& each : module.named_modules("", /*include_self=*/false))
    add(each.key() + ".", *each.value());
  return all;
}

at::Tensor draw_uniform(at::IntArrayRef sizes, double bound, std::optional<at::Generator> generator) {
  const at::NoGradGuard no_grad;
  return at::empty(sizes).uniform_(-bound, bound, std::move(generator));
}

at::Tensor draw_normal(at::IntArrayRef sizes, double deviation, std::optional<at::Generator> generator) {
  const at::NoGradGuard no_grad;
  return at::empty(sizes).normal_(0, deviation, std::move(generator));
}

}  // namespace weft::tensor_parallel
