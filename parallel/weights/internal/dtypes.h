// The names of LibTorch's element types in files.
#pragma once

#include <weft/rpc/core/export.h>

#include <c10/core/ScalarType.h>

#include <string>
#include <string_view>

namespace weft::weights {

struct Dtype {
  at::ScalarType type;
  const char* torch;          // "float32": torch.float32 in a pickle
  const char* storage;        // "FloatStorage"; null: the type has an untyped storage
  const char* safetensors;    // "F32"
  bool only_in_weft = false;  // other programs may not know this name of safetensors
  int elements_of_shape = 1;  // of the shape in safetensors, for one element of LibTorch
};

// Null: no type has this name.
WEFT_EXPORT const Dtype* dtype_of(at::ScalarType type);
WEFT_EXPORT const Dtype* dtype_of_safetensors(std::string_view name);
WEFT_EXPORT const Dtype* dtype_of_torch(std::string_view name);
WEFT_EXPORT const Dtype* dtype_of_storage(std::string_view name);

// "float32", or LibTorch's name of a type that no file has.
WEFT_EXPORT std::string name_of(at::ScalarType type);

}  // namespace weft::weights
