#include <weft/parallel/data_parallel/internal/sparse_gradients.h>

#include <weft/rpc/core/when_all.h>

#include <ATen/Functions.h>
#include <torch/nn/modules/embedding.h>

#include <algorithm>

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

SparseGather::SparseGather(collectives::Group group, at::IntArrayRef sizes, const at::TensorOptions& options,
                           const at::Tensor& gradient)
    : group_(std::move(group)), sizes_(sizes.vec()), options_(options) {
  if (gradient.defined()) own_ = gradient.coalesce();
}

std::optional<rpc::Future<void>> SparseGather::run(int step) {
  if (step == 1) return exchange_rows(counts_);
  if (step > 1) return std::nullopt;
  const at::Tensor count = at::zeros({2}, at::kLong);
  if (own_.defined()) {
    count[0] = own_._nnz();
    count[1] = own_.sparse_dim();
  }
  counts_ = at::empty({group_.size(), 2}, at::kLong);
  return group_.all_gather(counts_, count);
}

rpc::Future<void> SparseGather::exchange_rows(at::Tensor counts) {
  counts_ = std::move(counts);
  const auto sparse_dim = std::max<std::int64_t>(counts_.select(1, 1).max().item<std::int64_t>(), 1);
  const at::IntArrayRef dense = at::IntArrayRef(sizes_).slice(static_cast<std::size_t>(sparse_dim));
  const auto values_of = [&](std::int64_t rows) {
    std::vector<std::int64_t> sizes{rows};
    sizes.insert(sizes.end(), dense.begin(), dense.end());
    return at::empty(sizes, options_);
  };
  const at::TensorOptions index_options = options_.dtype(at::kLong);
  for (int rank = 0; rank < group_.size(); ++rank) {
    const auto rows = counts_[rank][0].item<std::int64_t>();
    indices_.push_back(at::empty({sparse_dim, rows}, index_options));
    values_.push_back(values_of(rows));
  }
  const at::Tensor indices = own_.defined() ? own_._indices() : at::empty({sparse_dim, 0}, index_options);
  const at::Tensor values = own_.defined() ? own_._values() : values_of(0);
  std::vector<rpc::Future<void>> rows;
  rows.push_back(group_.all_gather_v(indices_, indices));
  rows.push_back(group_.all_gather_v(values_, values));
  return rpc::when_all(std::move(rows));
}

at::Tensor SparseGather::sum() const {
  return at::sparse_coo_tensor(at::cat(indices_, 1), at::cat(values_, 0), sizes_).coalesce();
}

}  // namespace weft::data_parallel
