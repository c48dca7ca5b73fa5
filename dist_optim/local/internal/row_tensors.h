// Rows and their ids as tensors, in the form in which trainers and owners exchange them. Pure functions.
// Errors: invalid_argument, with the actual value.
#pragma once

#include <weft/rpc/core/export.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace weft::dist_optim {

// The ids of a contiguous int64 tensor on the CPU, of any shape. The span is valid as long as the tensor
// exists.
WEFT_EXPORT std::span<const std::int64_t> ids_in(const at::Tensor& ids);
// The floats of a contiguous [rows, width] tensor on the CPU.
WEFT_EXPORT std::span<const float> floats_in(const at::Tensor& tensor, std::size_t rows, std::size_t width,
                                             const char* what);

// The elements of a contiguous int32 tensor [rows] on the CPU.
WEFT_EXPORT std::span<const std::uint32_t> ages_in(const at::Tensor& ages, std::size_t rows);

// New tensors [n] on the CPU, of int64 and of int32.
WEFT_EXPORT at::Tensor tensor_of(std::span<const std::int64_t> ids);
WEFT_EXPORT at::Tensor tensor_of(std::span<const std::uint32_t> ages);
WEFT_EXPORT at::Tensor tensor_of(std::span<const float> values, std::size_t width);  // [n, width]

// The gradient of these rows in the form of a step: sparse and coalesced. An id may be any int64: the first
// size of the tensor has no meaning. ids: [n] int64, each once; gradients: [n, width] float.
WEFT_EXPORT at::Tensor row_gradient(const at::Tensor& ids, const at::Tensor& gradients);

}  // namespace weft::dist_optim
