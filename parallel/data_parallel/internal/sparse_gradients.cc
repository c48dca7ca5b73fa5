#include <weft/parallel/data_parallel/internal/sparse_gradients.h>

#include <torch/nn/modules/embedding.h>

namespace weft::data_parallel {

std::vector<std::string> sparse_parameters(const torch::nn::Module& module) {
  std::vector<std::string> names;
  module.apply([&](const std::string& name, const torch::nn::Module& each) {
    const auto* one = each.as<torch::nn::EmbeddingImpl>();
    const auto* bag = each.as<torch::nn::EmbeddingBagImpl>();
    if ((one != nullptr && one->options.sparse()) || (bag != nullptr && bag->options.sparse()))
      names.push_back(name.empty() ? "weight" : name + ".weight");
  });
  return names;
}

}  // namespace weft::data_parallel
