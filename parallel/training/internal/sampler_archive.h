// The state of a sampler in LibTorch's archives: numbers by name. Plain functions over values.
#pragma once

#include <weft/rpc/core/error.h>

#include <ATen/ops/full.h>
#include <torch/serialize/archive.h>

#include <cstdint>
#include <string>

namespace weft::training {

// One number.
inline void write_number(torch::serialize::OutputArchive& archive, const char* key, std::uint64_t value) {
  archive.write(key, at::full({}, static_cast<std::int64_t>(value), at::kLong));
}
inline std::uint64_t read_number(torch::serialize::InputArchive& archive, const char* key) {
  at::Tensor value;
  archive.read(key, value);
  return static_cast<std::uint64_t>(value.item<std::int64_t>());
}

// Throws failed_precondition, with the name of the sampler, unless the saved number is `own`.
inline void expect_number(torch::serialize::InputArchive& archive, const std::string& sampler,
                          const char* key, std::uint64_t own) {
  if (const std::uint64_t saved = read_number(archive, key); saved != own)
    throw rpc::Error(rpc::ErrorKind::failed_precondition, sampler + ": the saved state has " + key + " " +
                                                              std::to_string(saved) + ", expected " +
                                                              std::to_string(own) + ": the orders differ");
}

}  // namespace weft::training
