#include <weft/parallel/collectives/operation/internal/collective_call.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/errors.h"

namespace weft::collectives::testing {
namespace collective_call_test {

using Tensors = std::vector<at::Tensor>;
using rpc::ErrorKind;

constexpr int ranks = 3, rank = 1;

// Returns the text of the error, or "" without one. Also checks the kind of the error.
std::string refusal(const CollectiveCall& call, ErrorKind kind = ErrorKind::invalid_argument) {
  try {
    check(call, rank, ranks);
    return "";
  } catch (const rpc::Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
}
Tensors zeros(std::vector<std::int64_t> sizes) {
  Tensors tensors;
  for (const std::int64_t size : sizes) tensors.push_back(at::zeros({size}));
  return tensors;
}

struct Case {
  Operation operation;
  std::vector<std::int64_t> outputs, inputs;
  const char* refused;  // the refusal; "" for a valid call
};

TEST(CollectiveCalls, AreCheckedByTheDescriptionOfTheirOperation) {
  using enum Operation;
  const Case cases[] = {
      {all_reduce, {4}, {}, ""},
      {all_reduce, {4, 0, 2}, {}, ""},
      {all_reduce, {}, {}, "all_reduce: 0 tensors, expected at least one"},
      {broadcast, {}, {}, "broadcast: 0 tensors, expected at least one"},
      {reduce, {4}, {}, ""},
      {all_gather, {6}, {2}, ""},
      {all_gather, {6, 3}, {2, 1}, ""},
      {all_gather, {7}, {2}, "all_gather: an output of 7 elements where 3 × 2 are expected"},
      {all_gather, {6}, {2, 1}, "all_gather: 1 outputs, expected 2: give one output for each input"},
      {all_gather, {}, {}, "all_gather: 0 tensors, expected at least one"},
      {all_gather_v, {1, 2, 3}, {2}, ""},
      {all_gather_v, {1, 2}, {2}, "all_gather_v: 2 tensors as outputs, expected 3: give one for each rank"},
      {all_gather_v,
       {1, 2, 3},
       {3},
       "all_gather_v: this rank's output of 2 elements, expected 3: as large as the input"},
      {reduce_scatter, {2}, {6}, ""},
      {reduce_scatter, {2}, {2}, "reduce_scatter: an input of 2 elements where 3 × 2 are expected"},
      {reduce_scatter_v, {2}, {1, 2, 3}, ""},
      {reduce_scatter_v,
       {1},
       {1, 2, 3},
       "reduce_scatter_v: this rank's input of 2 elements, expected 1: as large as the output"},
      {reduce_scatter_v,
       {2},
       {1, 2},
       "reduce_scatter_v: 2 tensors as inputs, expected 3: give one for each rank"},
      {all_to_all, {6}, {6}, ""},
      {all_to_all,
       {4},
       {4},
       "all_to_all: an input of 4 elements and an output of 4: expected one size, a multiple of 3, the size "
       "of the group"},
      {all_to_all_v, {1, 2, 3}, {0, 5, 1}, ""},
      {all_to_all_v, {1, 2, 3}, {0}, "all_to_all_v: 1 tensors as inputs, expected 3: give one for each rank"},
      {barrier, {}, {}, ""},
  };
  for (const Case& each : cases) {
    const Tensors outputs = zeros(each.outputs), inputs = zeros(each.inputs);
    CollectiveCall call{.operation = each.operation, .outputs = outputs, .inputs = inputs};
    if (description_of(each.operation).has_root) call.root = 0;
    EXPECT_EQ(refusal(call), each.refused);
  }
}

TEST(CollectiveCalls, OnlyTheRootPassesATensorForEachRank) {
  const Tensors three = zeros({2, 2, 2}), two = zeros({2, 2}), uneven = zeros({2, 2, 1}), one = zeros({2});
  const auto gather = [&](const Tensors& outputs, int root) {
    return refusal({.operation = Operation::gather, .outputs = outputs, .inputs = one, .root = root});
  };
  EXPECT_EQ(gather(three, rank), "");
  EXPECT_EQ(gather({}, 0), "");
  EXPECT_EQ(gather(two, rank), "gather: 2 tensors as outputs, expected 3: give one for each rank");
  EXPECT_EQ(gather(three, 2),
            "gather: 3 tensors as outputs on rank 1, expected none: only the root, rank 2, gives these");
  EXPECT_EQ(gather(uneven, rank), "gather: an output of 1 elements, expected 2: as large as the input");
  EXPECT_EQ(gather({}, 3), "gather: root 3 of a group of 3: give a rank from 0 to 2");
  EXPECT_EQ(refusal({.operation = Operation::scatter, .outputs = one, .inputs = uneven, .root = rank}),
            "scatter: an input of 1 elements, expected 2: as large as the output");
  EXPECT_EQ(refusal({.operation = Operation::scatter, .outputs = one, .root = rank}),
            "scatter: 0 tensors as inputs, expected 3: give one for each rank");
}

TEST(CollectiveCalls, TakeDenseTensorsOfOneDtype) {
  const auto all_reduce = [](const Tensors& tensors, ErrorKind kind) {
    return refusal({.operation = Operation::all_reduce, .outputs = tensors}, kind);
  };
  EXPECT_EQ(all_reduce({at::Tensor()}, ErrorKind::invalid_argument),
            "all_reduce: an undefined tensor, expected a defined one");
  EXPECT_EQ(all_reduce({at::zeros({1}), at::zeros({1}, at::kLong)}, ErrorKind::invalid_argument),
            "all_reduce: tensors of float32 and of int64: give tensors of one dtype");
  EXPECT_EQ(all_reduce({at::zeros({1}).to_sparse()}, ErrorKind::unsupported),
            "all_reduce: a sparse or quantized tensor: give a dense one");
  EXPECT_EQ(all_reduce({at::zeros({1}, at::kMeta)}, ErrorKind::unsupported),
            "all_reduce: a tensor on meta: give one of the host's memory or of a GPU");
}

TEST(CollectiveCalls, MayBeInPlaceOnlyAtTheOwnPart) {
  const at::Tensor whole = at::zeros({9});
  const auto at = [&](std::int64_t begin) { return whole.narrow(0, begin, 3); };
  const Tensors thirds{at(0), at(3), at(6)};
  const auto refused = [&](Operation operation, Tensors outputs, Tensors inputs,
                           std::optional<int> root = {}) {
    return refusal({.operation = operation, .outputs = outputs, .inputs = inputs, .root = root});
  };
  using enum Operation;
  EXPECT_EQ(refused(all_gather, {whole}, {at(3)}), "");
  EXPECT_EQ(refused(all_gather_v, thirds, {at(3)}), "");
  EXPECT_EQ(refused(gather, thirds, {at(3)}, rank), "");
  EXPECT_EQ(refused(reduce_scatter, {at(3)}, {whole}), "");
  EXPECT_EQ(refused(reduce_scatter_v, {at(3)}, thirds), "");
  EXPECT_EQ(refused(scatter, {at(3)}, thirds, rank), "");
  const std::string end = ": use tensors that do not overlap";
  for (const std::int64_t other : {0, 2, 6}) {
    const std::string input = ": input and output overlap, and the input is not exactly part 1 of the output";
    const std::string output =
        ": input and output overlap, and the output is not exactly part 1 of the input";
    EXPECT_EQ(refused(all_gather, {whole}, {at(other)}), "all_gather" + input + end);
    EXPECT_EQ(refused(all_gather_v, thirds, {at(other)}), "all_gather_v" + input + end);
    EXPECT_EQ(refused(gather, thirds, {at(other)}, rank), "gather" + input + end);
    EXPECT_EQ(refused(reduce_scatter, {at(other)}, {whole}), "reduce_scatter" + output + end);
    EXPECT_EQ(refused(reduce_scatter_v, {at(other)}, thirds), "reduce_scatter_v" + output + end);
    EXPECT_EQ(refused(scatter, {at(other)}, thirds, rank), "scatter" + output + end);
  }
  EXPECT_EQ(refused(all_to_all, {whole}, {whole}), "all_to_all: input and output overlap" + end);
  EXPECT_EQ(refused(all_to_all_v, thirds, thirds), "all_to_all_v: input and output overlap" + end);
  // With several tensors, a part is in place only in its own tensor.
  const at::Tensor other = at::zeros({9});
  EXPECT_EQ(refused(all_gather, {whole, other}, {at(3), other.narrow(0, 3, 3)}), "");
  EXPECT_NE(refused(all_gather, {other, whole}, {at(3), other.narrow(0, 3, 3)}), "");
  // An input that is copied cannot overlap an output.
  EXPECT_EQ(refused(all_to_all, {whole}, {at::zeros({1}).expand({9})}), "");
}

TEST(CollectiveCalls, HaveSignatureAndLayout) {
  const Tensors two = zeros({2, 4}), six = zeros({6}), three = zeros({1, 2, 3}), one = zeros({2});
  const CollectiveCall all_reduce{
      .operation = Operation::all_reduce, .outputs = two, .reduction = ReduceOp::avg};
  EXPECT_EQ(signature_of(all_reduce).text(), "all_reduce(avg, float32[2], float32[4])");
  EXPECT_EQ(layout_of(all_reduce, ranks).elements, 6U);
  const CollectiveCall scatter{.operation = Operation::scatter, .outputs = one, .root = 2};
  EXPECT_EQ(signature_of(scatter).text(), "scatter(float32[2], root 2)");
  EXPECT_EQ(layout_of(scatter, ranks).root, 2);
  EXPECT_EQ(layout_of(scatter, ranks).blocks, (std::vector<Range>{{0, 2}, {2, 4}, {4, 6}}));
  const CollectiveCall all_to_all_v{.operation = Operation::all_to_all_v, .outputs = three, .inputs = three};
  EXPECT_EQ(signature_of(all_to_all_v).text(), "all_to_all_v(float32[?])");
  EXPECT_EQ(layout_of(all_to_all_v, ranks).from, (std::vector<Range>{{0, 1}, {1, 3}, {3, 6}}));
  const CollectiveCall reduce_scatter{
      .operation = Operation::reduce_scatter, .outputs = one, .inputs = six, .reduction = ReduceOp::sum};
  EXPECT_EQ(signature_of(reduce_scatter).text(), "reduce_scatter(sum, float32[6])");
  EXPECT_EQ(layout_of(reduce_scatter, ranks).blocks, (std::vector<Range>{{0, 2}, {2, 4}, {4, 6}}));
  EXPECT_EQ(signature_of({}).text(), "barrier()");
}

}  // namespace collective_call_test
}  // namespace weft::collectives::testing
