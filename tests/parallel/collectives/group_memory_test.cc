// Which memory a collective uses: input and output that overlap.
#include "tests/parallel/collectives/company.h"

namespace weft::collectives::testing {
namespace group_memory_test {

class GroupMemory : public OfFew {};
INSTANTIATE_TEST_SUITE_P(Backends, GroupMemory, ::testing::ValuesIn(all_backends),
                         ::testing::PrintToStringParamName());

// --- Overlaps ---

TEST_P(GroupMemory, OverlapsAreRefusedBeforeAnythingIsSent) {
  const at::Tensor whole = at::zeros({ranks, 6}), flat = whole.view({-1}), shifted = flat.narrow(0, 7, 6);
  const auto expect = [&](rpc::Future<void> future, const std::string& operation) {
    test::expect_error(std::move(future), ErrorKind::invalid_argument,
                       operation + ": input and output overlap");
  };
  const Group& group = groups[1];
  expect(group.all_gather(whole, whole[0]), "all_gather");
  expect(group.all_gather(whole, shifted), "all_gather");
  expect(group.reduce_scatter(whole[0], whole), "reduce_scatter");
  expect(group.reduce_scatter(shifted, whole), "reduce_scatter");
  expect(group.all_to_all(flat, flat), "all_to_all");
  test::expect_error(group.all_gather(whole, whole[2]), ErrorKind::invalid_argument,
                     "the input is not exactly part 1 of the output");
  // None of them has begun: all ranks mean the same by the next one.
  Tensors tensors;
  for (int rank = 0; rank < ranks; ++rank) tensors.push_back(values(rank, {6}));
  together(groups, [&](const Group& each) { return each.all_reduce(tensors[each.rank()]); });
  expect_equal(tensors[0], sum_of(ranks, {6}));
}

TEST_P(GroupMemory, NoElementsOverlapNothing) {
  const at::Tensor whole = at::zeros({ranks, 0});
  together(groups, [&](const Group& group) { return group.all_gather(whole, whole[0]); });
}

// A difference leaves what is in place as it was.
TEST_P(GroupMemory, ADifferenceLeavesTheInputOfACollectiveInPlace) {
  for (const std::int64_t size : {10, 40'000}) {
    Tensors wholes;
    for (int rank = 0; rank < ranks; ++rank) wholes.push_back(values(rank, {ranks, size}));
    Futures futures;
    for (const Group& group : groups) {
      const at::Tensor& whole = wholes[group.rank()];
      futures.push_back(group.reduce_scatter(whole[group.rank()], whole,
                                             group.rank() == 0 ? ReduceOp::max : ReduceOp::sum));
    }
    expect_all(std::move(futures), ErrorKind::invalid_argument, {"do not mean the same"});
    for (int rank = 0; rank < ranks; ++rank) expect_equal(wholes[rank], values(rank, {ranks, size}));
  }
}

}  // namespace group_memory_test
}  // namespace weft::collectives::testing
