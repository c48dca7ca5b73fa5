// Tensor files: tensors by name, and notes, in one file that is complete or does not exist.
//
// The format is that of safetensors (Hugging Face, 2022), so other programs can read the tensors: a
// little-endian u64, that number of bytes of JSON (for each tensor its dtype, shape and offsets;
// "__metadata__" for the notes), then the tensors' elements, little-endian and in C order, without gaps. This
// code writes and checks two notes. "weft.crc32c.blocks" has a CRC-32C for each MiB of the elements, so that
// a part of a tensor can be checked without the rest; "weft.crc32c" is the CRC-32C of the JSON, including the
// first note, with zeros in place of the digits of this CRC-32C.
//
// Tensors must be dense and of a real or integer type. CUDA tensors are written as their values, and read as
// CPU tensors. Calls block. One thread at a time may use a reader.
#pragma once

#include <weft/parallel/weights/checked_file.h>
#include <weft/parallel/weights/tensor_form.h>
#include <weft/rpc/core/export.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace weft::dist_optim {

// The contents of one file, by name.
struct TensorFile {
  std::map<std::string, at::Tensor> tensors;
  std::map<std::string, std::string> notes;
  // true after a read if the file has a checksum, and the checksum is right (other programs write none)
  bool proven = false;
};

// Atomic: after a crash the file is the new or the old one. Returns the file's "weft.crc32c"; a file with
// other contents is unlikely to have the same value. Errors: invalid_argument, which names the tensor, if the
// format cannot store it; those of weights::write_whole().
WEFT_EXPORT std::uint32_t write_tensor_file(const std::filesystem::path& path, const TensorFile& contents);

// failed_precondition: the file is damaged or not of this format. unsupported: LibTorch lacks a dtype of it.
// Lengths in the file are checked against its size before memory is allocated.
WEFT_EXPORT TensorFile read_tensor_file(const std::filesystem::path& path);

using TensorForm = weights::TensorForm;  // only the type and the shape are used

// write_tensor_file() for tensors that do not fit into memory together. It calls `values` for each name, in
// the order of the names, writes the tensor and drops it before the next call. invalid_argument if a tensor
// differs from its form in `forms`.
WEFT_EXPORT std::uint32_t write_tensor_file(const std::filesystem::path& path,
                                            const std::map<std::string, TensorForm>& forms,
                                            const std::map<std::string, std::string>& notes,
                                            const std::function<at::Tensor(const std::string&)>& values);

// Reads single tensors of a file, or ranges of their elements. Errors: those of read_tensor_file().
class WEFT_EXPORT TensorFileReader {
 public:
  explicit TensorFileReader(const std::filesystem::path& path);  // reads the header and checks it

  // Contents of the header: the dtype and shape of each tensor, the notes, and whether the checksum is right.
  const std::map<std::string, TensorForm>& tensors() const { return forms_; }
  const std::map<std::string, std::string>& notes() const { return notes_; }
  bool proven() const { return proven_; }
  std::uint32_t crc() const { return crc_; }  // the result of write_tensor_file(); 0: not proven

  // Fills `to` (of the tensor's dtype, on any device) with the elements of the flattened tensor from `begin`
  // on. std::out_of_range if no tensor has that name, invalid_argument if it has fewer elements or another
  // dtype. Only the blocks that contain these elements are read and, if proven(), checked. If `to` is
  // contiguous in host memory, whole blocks are read into it without a copy.
  void read(const std::string& name, std::int64_t begin, const at::Tensor& to);

 private:
  void read_bytes(std::uint64_t begin, std::uint64_t end, std::byte* to);
  void read_block(std::uint64_t block, std::byte* to);

  weights::CheckedFile file_;
  std::map<std::string, TensorForm> forms_;
  std::map<std::string, std::uint64_t> places_;  // bytes from the start of the first tensor
  std::map<std::string, std::string> notes_;
  bool proven_ = false;
  std::uint32_t crc_ = 0;
  std::uint64_t elements_at_ = 0, elements_bytes_ = 0;
  std::string blocks_;           // the CRC-32C of each block, in eight hexadecimal digits
  std::vector<std::byte> last_;  // the last block that was read in part: the next tensor is often in it
  std::uint64_t last_block_ = ~std::uint64_t{0};
};

}  // namespace weft::dist_optim
