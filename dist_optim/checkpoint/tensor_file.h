// Tensor files: tensors by name, and notes, in one file that is whole or not there.
//
// The format is that of safetensors (Hugging Face, 2022), so that other programs read the tensors as they
// are: a u64 little-endian, so many bytes of JSON (for each tensor its dtype, shape and place; "__metadata__"
// for the notes), then the tensors' elements, little-endian and in C order, without gaps. Two notes are
// written and checked here. "weft.crc32c.blocks" has a CRC-32C for each MiB of the elements, so that a part
// of a tensor is proven without the rest; "weft.crc32c" is the CRC-32C of the JSON with that note in it.
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

struct TensorFile {
  std::map<std::string, at::Tensor> tensors;
  std::map<std::string, std::string> notes;
  bool proven = false;  // when read: its checksum is right; other programs' files have none
};

// Atomic: after a crash the file is the new or the old one. invalid_argument, naming it, for a tensor that
// the format cannot hold; else the errors of write_whole(). Returns the file's "weft.crc32c", which no file
// with other contents is likely to have.
WEFT_EXPORT std::uint32_t write_tensor_file(const std::filesystem::path& path, const TensorFile& contents);

// failed_precondition where the file is damaged or none of this format. A length in it is trusted only as far
// as the file is long.
WEFT_EXPORT TensorFile read_tensor_file(const std::filesystem::path& path);

// A tensor of a file without its elements.
struct TensorForm {
  at::ScalarType dtype;
  std::vector<std::int64_t> sizes;
};

// The same for tensors that are not all in memory: calls `values` for each name, in their order, and drops
// the tensor before the next call. invalid_argument where a tensor has another form than `forms` says.
WEFT_EXPORT std::uint32_t write_tensor_file(const std::filesystem::path& path,
                                            const std::map<std::string, TensorForm>& forms,
                                            const std::map<std::string, std::string>& notes,
                                            const std::function<at::Tensor(const std::string&)>& values);

// Reads single tensors of a file, or ranges of their elements. Errors: those of read_tensor_file().
class WEFT_EXPORT TensorFileReader {
 public:
  explicit TensorFileReader(const std::filesystem::path& path);  // reads the header and proves it

  const std::map<std::string, TensorForm>& tensors() const { return forms_; }
  const std::map<std::string, std::string>& notes() const { return notes_; }
  bool proven() const { return proven_; }
  std::uint32_t crc() const { return crc_; }  // as write_tensor_file() returned it; 0 where it is not proven

  // Fills `to` (of the tensor's dtype, on any device) with the elements of the flattened tensor from `begin`
  // on; std::out_of_range where it has none of that name, invalid_argument where it has fewer elements or
  // another dtype. Reads and proves the blocks in which these are, and copies nothing where `to` is
  // contiguous in host memory.
  void read(const std::string& name, std::int64_t begin, const at::Tensor& to);

 private:
  void read_bytes(std::uint64_t begin, std::uint64_t end, std::byte* to);
  void read_block(std::uint64_t block, std::byte* to);

  CheckedFile file_;
  std::map<std::string, TensorForm> forms_;
  std::map<std::string, std::uint64_t> places_;  // bytes from the first element of all
  std::map<std::string, std::string> notes_;
  bool proven_ = false;
  std::uint32_t crc_ = 0;
  std::uint64_t elements_at_ = 0, elements_bytes_ = 0;
  std::string blocks_;           // eight digits each
  std::vector<std::byte> last_;  // the last block of which a part was read: the next tensor is often in it
  std::uint64_t last_block_ = ~std::uint64_t{0};
};

}  // namespace weft::dist_optim
