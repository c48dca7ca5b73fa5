// Rows and ids as the tensors that travel between a ShardedEmbedding's clients and shards. Pure functions.
// Errors: invalid_argument, with what was found.
#pragma once

#include <weft/dist_optim/embedding/row_store.h>

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

namespace weft::dist_optim {

// The ids of a contiguous int64 tensor on the CPU, of any shape; valid as long as it.
WEFT_EXPORT std::span<const std::int64_t> ids_in(const at::Tensor& ids);
// The floats of a contiguous [rows, width] tensor on the CPU.
WEFT_EXPORT std::span<const float> floats_in(const at::Tensor& tensor, std::size_t rows, std::size_t width,
                                             const char* what);

WEFT_EXPORT at::Tensor tensor_of(std::span<const std::int64_t> ids);
WEFT_EXPORT at::Tensor tensor_of(std::span<const std::uint32_t> ages);
WEFT_EXPORT at::Tensor tensor_of(std::span<const float> values, std::size_t width);  // [n, width]

// The gradient of these rows as a step takes it: sparse and coalesced. An id may be any int64: the first size
// of the tensor bounds nothing. ids: [n] int64, each once; gradients: [n, width] float.
WEFT_EXPORT at::Tensor row_gradient(const at::Tensor& ids, const at::Tensor& gradients);

WEFT_EXPORT RowBlock block_in(const at::Tensor& ids, const at::Tensor& ages, const at::Tensor& records,
                              std::size_t record_size);

}  // namespace weft::dist_optim
