// column_product: the product of an input with this rank's rows of a weight, whose backward reduces the
// gradient of the input over the ranks while it computes the gradient of the weight.
#pragma once

#include <weft/parallel/tensor_parallel/internal/overlapped_group.h>

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>

namespace weft::tensor_parallel {

// input: [..., in], equal on all ranks, or with sequence_dim this rank's part along that dimension. weight:
// [rows of this rank, in]. bias: [rows of this rank], or undefined. Result: [..., rows of this rank], of the
// whole sequence. The input is kept for backward; with sequence_dim, this is only the part.
at::Tensor column_product(const std::shared_ptr<OverlappedGroup>& ranks, const at::Tensor& input,
                          const at::Tensor& weight, const at::Tensor& bias,
                          std::optional<std::int64_t> sequence_dim);

}  // namespace weft::tensor_parallel
