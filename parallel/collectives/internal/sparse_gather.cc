#include <weft/parallel/collectives/internal/sparse_gather.h>

#include <weft/parallel/collectives/operation/internal/collective_call.h>
#include <weft/rpc/core/when_all.h>

#include <ATen/ATen.h>

#include <algorithm>

namespace weft::collectives {

SparseGather::SparseGather(Group group, at::IntArrayRef sizes, const at::TensorOptions& options,
                           const at::Tensor& own)
    : group_(std::move(group)), sizes_(sizes.vec()), options_(options) {
  if (own.defined()) own_ = own.coalesce();
}

std::vector<std::int64_t> SparseGather::count() const {
  if (!own_.defined()) return {0, 0};
  return {own_._nnz(), own_.sparse_dim()};
}

std::optional<rpc::Future<void>> SparseGather::run(int step) {
  if (step == 1) return exchange_rows(counts_);
  if (step > 1) return std::nullopt;
  counts_ = at::empty({group_.size(), 2}, at::kLong);
  return group_.all_gather(counts_, at::tensor(count()));
}

// Allocates the rows of all ranks.
void SparseGather::take_counts(at::Tensor counts) {
  counts_ = std::move(counts);
  std::int64_t sparse_dim = 0;
  for (int rank = 0; rank < group_.size(); ++rank) {
    if (counts_[rank][0].item<std::int64_t>() == 0) continue;
    const auto of_rank = counts_[rank][1].item<std::int64_t>();
    if (sparse_dim != 0 && of_rank != sparse_dim)
      refuse("a sum of sparse tensors: rank " + std::to_string(rank) + " has " + std::to_string(of_rank) +
             " sparse dimensions, and a rank before it " + std::to_string(sparse_dim) +
             ": expected the same number on all ranks");
    sparse_dim = of_rank;
  }
  sparse_dim = std::max<std::int64_t>(sparse_dim, 1);
  const at::IntArrayRef dense = at::IntArrayRef(sizes_).slice(static_cast<std::size_t>(sparse_dim));
  const at::TensorOptions index_options = options_.dtype(at::kLong);
  const auto indices_of = [&](std::int64_t rows) { return at::empty({sparse_dim, rows}, index_options); };
  const auto values_of = [&](std::int64_t rows) {
    std::vector<std::int64_t> sizes{rows};
    sizes.insert(sizes.end(), dense.begin(), dense.end());
    return at::empty(sizes, options_);
  };
  for (int rank = 0; rank < group_.size(); ++rank) {
    const auto rows = counts_[rank][0].item<std::int64_t>();
    indices_.push_back(indices_of(rows));
    values_.push_back(values_of(rows));
  }
  const bool has_rows = own_.defined() && own_._nnz() != 0;
  own_indices_ = has_rows ? own_._indices() : indices_of(0);
  own_values_ = has_rows ? own_._values() : values_of(0);
}

rpc::Future<void> SparseGather::exchange_rows(at::Tensor counts) {
  take_counts(std::move(counts));
  std::vector<rpc::Future<void>> rows;
  rows.push_back(group_.all_gather_v(indices_, own_indices_));
  rows.push_back(group_.all_gather_v(values_, own_values_));
  return rpc::when_all(std::move(rows));
}

rpc::Future<void> SparseGather::send_rows(at::Tensor counts, std::uint64_t tag, Timeout timeout,
                                          Group::Site site) {
  take_counts(std::move(counts));
  const auto own = static_cast<std::size_t>(group_.rank());
  std::vector<PointToPoint> messages;
  for (int rank = 0; rank < group_.size(); ++rank) {
    const auto other = static_cast<std::size_t>(rank);
    if (other == own) continue;
    if (own_values_.size(0) != 0)
      for (const at::Tensor& mine : {own_indices_, own_values_})
        messages.push_back({PointToPoint::Kind::send, mine, rank, tag});
    if (values_[other].size(0) != 0)
      for (const at::Tensor& theirs : {indices_[other], values_[other]})
        messages.push_back({PointToPoint::Kind::recv, theirs, rank, tag});
  }
  indices_[own] = own_indices_;
  values_[own] = own_values_;
  return group_.batch(std::move(messages), timeout, site);
}

at::Tensor SparseGather::sum() const {
  return at::sparse_coo_tensor(at::cat(indices_, 1), at::cat(values_, 0), sizes_).coalesce();
}

}  // namespace weft::collectives
