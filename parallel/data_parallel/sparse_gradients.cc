#include <weft/parallel/data_parallel/sparse_gradients.h>

#include <ATen/Functions.h>

#include <algorithm>

namespace weft::data_parallel {

SparseGather::SparseGather(collectives::Group group, const at::Tensor& parameter, const at::Tensor& gradient)
    : group_(std::move(group)),
      sizes_(parameter.sizes().vec()),
      options_(parameter.options().requires_grad(false)) {
  if (gradient.defined()) own_ = gradient.coalesce();
  const at::Tensor count = at::zeros({2}, at::kLong);
  if (own_.defined()) {
    count[0] = own_._nnz();
    count[1] = own_.sparse_dim();
  }
  counts_ = at::empty({group_.size(), 2}, at::kLong);
  in_flight_.push_back(group_.all_gather(counts_, count));
}

void SparseGather::start_values() {
  in_flight_.front().get();
  in_flight_.clear();
  sparse_dim_ = std::max<std::int64_t>(counts_.select(1, 1).max().item<std::int64_t>(), 1);
  const at::IntArrayRef dense = at::IntArrayRef(sizes_).slice(static_cast<std::size_t>(sparse_dim_));
  const auto values_of = [&](std::int64_t rows) {
    std::vector<std::int64_t> sizes{rows};
    sizes.insert(sizes.end(), dense.begin(), dense.end());
    return at::empty(sizes, options_);
  };
  const at::TensorOptions index_options = options_.dtype(at::kLong);
  for (int rank = 0; rank < group_.size(); ++rank) {
    const auto rows = counts_[rank][0].item<std::int64_t>();
    indices_.push_back(at::empty({sparse_dim_, rows}, index_options));
    values_.push_back(values_of(rows));
  }
  const at::Tensor indices = own_.defined() ? own_._indices() : at::empty({sparse_dim_, 0}, index_options);
  const at::Tensor values = own_.defined() ? own_._values() : values_of(0);
  in_flight_.push_back(group_.all_gather_v(indices_, indices));
  in_flight_.push_back(group_.all_gather_v(values_, values));
}

at::Tensor SparseGather::sum() {
  for (auto& exchange : in_flight_) exchange.get();
  in_flight_.clear();
  return at::sparse_coo_tensor(at::cat(indices_, 1), at::cat(values_, 0), sizes_).coalesce();
}

}  // namespace weft::data_parallel
