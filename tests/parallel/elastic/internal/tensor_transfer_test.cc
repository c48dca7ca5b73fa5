#include <weft/parallel/elastic/internal/tensor_transfer.h>

#include "tests/parallel/collectives/company.h"

namespace weft::elastic::tensor_transfer_test {
namespace {

using collectives::testing::Company;
using detail::transfer_tensors;

std::vector<at::Tensor> tensors_of(int rank) {
  return {at::full({2, 3}, rank, at::kFloat).requires_grad_(true),
          (at::arange(6, at::kDouble) + rank).view({2, 3}).t(), at::full({}, rank, at::kLong)};
}
void expect_of(int rank, const std::vector<at::Tensor>& tensors) {
  const auto expected = tensors_of(rank);
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(at::equal(tensors[i], expected[i])) << "tensor " << i << ": " << tensors[i];
}

TEST(TensorTransfer, EachReceiverGetsTheTensorsOfItsSender) {
  Company company(5);
  const auto groups = company.groups();
  const std::vector<Transfer> transfers{{0, 2}, {1, 3}, {0, 4}};
  std::vector<std::vector<at::Tensor>> tensors;
  std::vector<std::function<void()>> finish;
  for (const auto& group : groups) {
    tensors.push_back(tensors_of(group.rank()));
    finish.push_back(transfer_tensors(group, transfers, tensors.back()));
  }
  const void* const memory = tensors[2][0].const_data_ptr();
  for (const std::size_t sender : {0, 1}) finish[sender]();
  expect_of(2, tensors[2]);  // until its function is called
  for (const std::size_t receiver : {2, 3, 4}) finish[receiver]();
  for (const int from_0 : {0, 2, 4}) expect_of(0, tensors[static_cast<std::size_t>(from_0)]);
  for (const int from_1 : {1, 3}) expect_of(1, tensors[static_cast<std::size_t>(from_1)]);
  EXPECT_EQ(tensors[2][0].const_data_ptr(), memory) << "in place";
  EXPECT_TRUE(tensors[2][0].requires_grad());
}

TEST(TensorTransfer, ARankWithoutATransferHasNothingToFinish) {
  Company company(3);
  const auto groups = company.groups();
  EXPECT_FALSE(transfer_tensors(groups[2], {{0, 1}}, tensors_of(2)));
}

}  // namespace
}  // namespace weft::elastic::tensor_transfer_test
