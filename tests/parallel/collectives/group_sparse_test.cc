// All-reduces of sparse tensors (COO), on every backend.
#include "tests/parallel/collectives/company.h"

namespace weft::collectives::testing {
namespace group_sparse_test {

class SparseTensors : public OfFew {};
INSTANTIATE_TEST_SUITE_P(Backends, SparseTensors, ::testing::ValuesIn(all_backends),
                         ::testing::PrintToStringParamName());

// rank × 3 rows, some of them at equal indices, of a tensor of 8 in each sparse dimension and 5 in each dense
// dimension.
at::Tensor sparse_of(int rank, std::int64_t sparse_dims, std::int64_t dense_dims,
                     at::ScalarType type = at::kFloat) {
  const std::int64_t rows = 3 * rank;
  std::vector<std::int64_t> sizes(std::size_t(sparse_dims), 8), of_values { rows };
  for (std::int64_t d = 0; d < dense_dims; ++d) sizes.push_back(5), of_values.push_back(5);
  const at::Tensor indices =
      (at::arange(sparse_dims * rows).view({sparse_dims, rows}).remainder(5) + rank).remainder(8);
  return at::sparse_coo_tensor(indices, values(rank, of_values, type), sizes);
}

at::Tensor dense_sum(int ranks, std::int64_t sparse_dims, std::int64_t dense_dims, at::ScalarType type) {
  at::Tensor sum = sparse_of(0, sparse_dims, dense_dims, type).to_dense();
  for (int rank = 1; rank < ranks; ++rank)
    sum = sum + sparse_of(rank, sparse_dims, dense_dims, type).to_dense();
  return sum;
}

// The ranks start a dense collective while the sparse ones are in flight.
TEST_P(SparseTensors, AreAddedWithAnyNumberOfRows) {
  for (const auto type : {at::kFloat, at::kDouble, at::kLong, at::kComplexFloat})
    for (const std::int64_t sparse_dims : {1, 2, 3})
      for (const std::int64_t dense_dims : {0, 1, 2}) {
        const Tensors tensors =
            of_ranks(ranks, [&](int rank) { return sparse_of(rank, sparse_dims, dense_dims, type); });
        const Tensors more = of_ranks(ranks, [&](int rank) { return sparse_of(rank + 1, 1, 1, type); });
        const Tensors dense = of_ranks(ranks, [&](int rank) { return values(rank, {10}); });
        Futures futures;
        for (const Group& group : groups) {
          futures.push_back(group.all_reduce(tensors[group.rank()]));
          futures.push_back(group.all_reduce(dense[group.rank()]));
          futures.push_back(group.all_reduce(more[group.rank()]));
        }
        for (auto& future : futures) got(std::move(future));
        for (int rank = 0; rank < ranks; ++rank) {
          EXPECT_TRUE(tensors[rank].is_coalesced());
          expect_equal(tensors[rank].to_dense(), dense_sum(ranks, sparse_dims, dense_dims, type));
          expect_equal(tensors[rank]._indices(), tensors[0]._indices());
          expect_equal(tensors[rank]._values(), tensors[0]._values());
          expect_equal(more[rank].to_dense(), more[0].to_dense());
          expect_equal(dense[rank], sum_of(ranks, {10}));
        }
      }
}

TEST_P(SparseTensors, OfNoRowsRemainEmpty) {
  const Tensors tensors = of_ranks(ranks, [](int) { return sparse_of(0, 2, 1); });
  together(groups, [&](const Group& group) { return group.all_reduce(tensors[group.rank()]); });
  for (const at::Tensor& tensor : tensors) EXPECT_EQ(tensor._nnz(), 0);
}

// As DDP needs for the gradient of a parameter.
TEST_P(SparseTensors, OfParametersAreAddedWithoutAutograd) {
  const Tensors tensors =
      of_ranks(ranks, [](int rank) { return sparse_of(rank, 1, 1).requires_grad_(true); });
  together(groups, [&](const Group& group) { return group.all_reduce(tensors[group.rank()]); });
  for (const at::Tensor& tensor : tensors) {
    EXPECT_TRUE(tensor.is_leaf());
    expect_equal(tensor.detach().to_dense(), dense_sum(ranks, 1, 1, at::kFloat));
  }
}

TEST_P(SparseTensors, ThatDifferAreAnErrorOnAllRanks) {
  const auto fails = [&](const auto& tensor_of, const std::vector<std::string>& words) {
    Futures futures;
    for (const Group& group : groups) futures.push_back(group.all_reduce(tensor_of(group.rank())));
    expect_all(std::move(futures), ErrorKind::invalid_argument, words);
  };
  fails([](int rank) { return sparse_of(rank, rank == 1 ? 2 : 1, rank == 1 ? 0 : 1); },
        {"rank 1 (worker1): all_reduce(sum, sparse float32[8, 8])", "group_sparse_test.cc"});
  fails([](int rank) { return at::ones({8, 8}).to_sparse(rank == 1 ? 1 : 2); }, {"sparse dimensions"});
  together(groups, [](const Group& group) { return group.barrier(); });
}

TEST_P(SparseTensors, OfOtherKindsAreRefused) {
  const auto refused = [&](const at::Tensor& tensor, ReduceOp op, const std::string& words) {
    for (const Group& group : groups)
      test::expect_error(group.all_reduce(tensor, op), ErrorKind::unsupported, words);
  };
  refused(sparse_of(1, 1, 0), ReduceOp::avg, "a sparse tensor with avg, expected sum");
  refused(sparse_of(1, 1, 0, at::kBool), ReduceOp::sum, "bool");
  refused(at::sparse_coo_tensor(at::empty({0, 1}, at::kLong), at::ones({1, 4}), {4}), ReduceOp::sum,
          "without sparse dimensions");
  // A refusal of one rank reaches all ranks.
  Futures futures;
  for (const Group& group : groups)
    futures.push_back(group.all_reduce(sparse_of(2, 1, 0, group.rank() == 1 ? at::kBool : at::kFloat)));
  test::expect_error(std::move(futures[1]), ErrorKind::unsupported, "bool");
  futures.erase(futures.begin() + 1);
  expect_all(std::move(futures), ErrorKind::invalid_argument, {"bool[8]), refused"});
  const Tensors tensors = of_ranks(ranks, [](int rank) { return sparse_of(rank, 1, 1); });
  together(groups, [&](const Group& group) { return group.all_reduce(tensors[group.rank()]); });
  expect_equal(tensors[0].to_dense(), dense_sum(ranks, 1, 1, at::kFloat));
}

TEST_P(SparseTensors, OfAMissingRankAreNamedAtTheDeadline) {
  expect_all(but(1,
                 [](const Group& group) {
                   return group.all_reduce(sparse_of(group.rank(), 1, 1), ReduceOp::sum, 100ms);
                 }),
             ErrorKind::deadline_exceeded, {"rank 1 (worker1) has not begun it"});
}

}  // namespace group_sparse_test
}  // namespace weft::collectives::testing
