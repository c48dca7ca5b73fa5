// Tensor files: tensors by name, and notes, in one file that is complete or does not exist.
//
// The format is that of safetensors (Hugging Face, 2022), so other programs can read the tensors: a
// little-endian u64, that number of bytes of JSON (for each tensor its dtype, shape and offsets;
// "__metadata__" for the notes), then the tensors' elements, little-endian and in C order, without gaps. This
// code writes and checks two notes. "weft.crc32c.blocks" has a CRC-32C for each MiB of the elements, so that
// a part of a tensor can be checked without the rest; "weft.crc32c" is the CRC-32C of the JSON with that note
// in it.
//
// Dense tensors of real and integer types; CUDA tensors are written as their values, and read as CPU tensors.
// Blocks; used by one thread.
#pragma once

#include <weft/dist_optim/checkpoint/checked_file.h>
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
  bool proven = false;  // when read: its checksum is right; files of other programs have none
};

// Atomic: after a crash the file is the new or the old one. invalid_argument, which names the tensor, if the
// format cannot hold it; also the errors of write_whole(). Returns the file's "weft.crc32c"; a file with
// other contents is unlikely to have the same.
WEFT_EXPORT std::uint32_t write_tensor_file(const std::filesystem::path& path, const TensorFile& contents);

// failed_precondition if the file is damaged or not of this format. A length in it is trusted only as far as
// the file is long.
WEFT_EXPORT TensorFile read_tensor_file(const std::filesystem::path& path);

// A tensor of a file without its elements.
struct TensorForm {
  at::ScalarType dtype;
  std::vector<std::int64_t> sizes;
};

// The same for tensors that are not all in memory: calls `values` for each name, in their order, and drops
// the tensor before the next call. invalid_argument if a tensor differs from its form in `forms`.
WEFT_EXPORT std::uint32_t write_tensor_file(const std::filesystem::path& path,
                                            const std::map<std::string, TensorForm>& forms,
                                            const std::map<std::string, std::string>& notes,
                                            const std::function<at::Tensor(const std::string&)>& values);

// Reads single tensors of a file, or ranges of their elements. Errors: those of read_tensor_file().
class WEFT_EXPORT TensorFileReader {
 public:
  explicit TensorFileReader(const std::filesystem::path& path);  // reads the header and checks it

  // What the header says: dtype, shape and place of each tensor; the notes; whether the checksum is right.
  const std::map<std::string, TensorForm>& tensors() const { return forms_; }
  const std::map<std::string, std::string>& notes() const { return notes_; }
  bool proven() const { return proven_; }
  std::uint32_t crc() const { return crc_; }  // as write_tensor_file() returned it; 0 if it was not checked

  // Fills `to` (of the tensor's dtype, on any device) with the elements of the flattened tensor from `begin`
  // on. std::out_of_range if no tensor has that name, invalid_argument if it has fewer elements or another
  // dtype. Reads and checks the blocks that contain these elements, and copies nothing if `to` is contiguous
  // in host memory.
  void read(const std::string& name, std::int64_t begin, const at::Tensor& to);

 private:
  void read_bytes(std::uint64_t begin, std::uint64_t end, std::byte* to);
  void read_block(std::uint64_t block, std::byte* to);

  CheckedFile file_;
  std::map<std::string, TensorForm> forms_;
  std::map<std::string, std::uint64_t> places_;  // bytes from the first element of all tensors
  std::map<std::string, std::string> notes_;
  bool proven_ = false;
  std::uint32_t crc_ = 0;
  std::uint64_t elements_at_ = 0, elements_bytes_ = 0;
  std::string blocks_;           // eight digits for each block
  std::vector<std::byte> last_;  // the last block that was read in part: the next tensor is often in it
  std::uint64_t last_block_ = ~std::uint64_t{0};
};

}  // namespace weft::dist_optim
