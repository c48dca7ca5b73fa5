// Entries of a hook's saved state: a number, or tensors by the index of a parameter.
//
// Loading throws invalid_argument if the archive has no such entry.
#pragma once

#include <weft/rpc/core/export.h>

#include <ATen/core/Tensor.h>
#include <torch/serialize/archive.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace weft::data_parallel {

// One number.
WEFT_EXPORT void save_number(torch::serialize::OutputArchive& archive, const std::string& key,
                             std::int64_t number);
WEFT_EXPORT std::int64_t load_number(torch::serialize::InputArchive& archive, const std::string& key);

// Tensors by the index of a parameter, on any device.
WEFT_EXPORT void save_map(torch::serialize::OutputArchive& archive, const std::string& key,
                          const std::map<std::size_t, at::Tensor>& tensors);
WEFT_EXPORT std::map<std::size_t, at::Tensor> load_map(torch::serialize::InputArchive& archive,
                                                       const std::string& key);

}  // namespace weft::data_parallel
