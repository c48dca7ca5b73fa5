// Tensor files: tensors by name, and notes, in one file that is whole or not there.
//
// The format is that of safetensors (Hugging Face, 2022), so that other programs read the tensors as they
// are: a u64 little-endian, so many bytes of JSON (for each tensor its dtype, shape and place; "__metadata__"
// for the notes), then the tensors' elements, little-endian and in C order, without gaps. A note
// "weft.crc32c", which is written and checked here, proves header and elements.
//
// Dense tensors of real and integer types; CUDA tensors are written as their values, and read as CPU tensors.
// Blocks; used by one thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <weft/rpc/core/export.h>

#include <filesystem>
#include <map>
#include <string>

namespace weft::dist_optim {

struct TensorFile {
  std::map<std::string, at::Tensor> tensors;
  std::map<std::string, std::string> notes;
  bool proven = false;  // when read: its checksum is right; other programs' files have none
};

// Atomic: after a crash the file is the new or the old one. invalid_argument, naming it, for a tensor that
// the format cannot hold; else the errors of write_whole().
WEFT_EXPORT void write_tensor_file(const std::filesystem::path& path, const TensorFile& contents);

// failed_precondition where the file is damaged or none of this format. A length in it is trusted only as far
// as the file is long.
WEFT_EXPORT TensorFile read_tensor_file(const std::filesystem::path& path);

}  // namespace weft::dist_optim
