// MappedSource: a Source whose tensors are each in one place of a mapped file.
#pragma once

#include <weft/parallel/weights/checked_file.h>
#include <weft/parallel/weights/source.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>

namespace weft::weights {

// A mapped file, or a part of one. Thread-safe. Private: writes to the memory do not reach the file.
class MappedFile {
 public:
  enum class Access { read, write };  // write: writes to the memory reach the file, which has its final size
  explicit MappedFile(const std::filesystem::path& path);
  explicit MappedFile(std::shared_ptr<CheckedFile> file, Access access);
  // The `size` bytes from `begin` on, which are in `whole`. Places in it count from its begin.
  MappedFile(std::shared_ptr<const MappedFile> whole, std::uint64_t begin, std::uint64_t size);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const CheckedFile& file() const { return *file_; }
  std::uint64_t size() const { return size_; }
  std::byte* data() const { return data_; }
  std::string_view text(std::uint64_t begin, std::uint64_t bytes) const {
    return {reinterpret_cast<const char*>(data_) + begin, bytes};
  }
  // Reads from the file, not from the mapped memory.
  void read_at(std::uint64_t begin, void* to, std::size_t bytes) const {
    file_->read_at(begin_ + begin, to, bytes);
  }
  // For messages: the path, and the place of a part. fail() throws failed_precondition, refuse() unsupported.
  std::string description() const;
  [[noreturn]] void fail(const std::string& what) const;
  [[noreturn]] void refuse(const std::string& what) const;

 private:
  const std::shared_ptr<const MappedFile> whole_;  // null: this is no part
  const std::shared_ptr<CheckedFile> file_;
  const std::uint64_t begin_ = 0;  // in the file
  std::uint64_t size_ = 0;
  std::byte* data_ = nullptr;
};

// A part of a file with a CRC-32, which is checked once.
struct CheckedRecord {
  std::uint64_t begin = 0, size = 0;
  std::uint32_t crc = 0;
  std::atomic<bool> checked = false;
};

inline constexpr auto checksum_remedy =
    "; if torch.save() has written the file without checksums (set_crc32_options(False)), open it with "
    "OpenOptions::checksums = false";

struct MappedTensor {
  std::shared_ptr<const MappedFile> file;
  std::uint64_t begin = 0;                     // of the element with all indices 0, in bytes of the file
  std::shared_ptr<CheckedRecord> record = {};  // null: no checksum
  bool conjugate = false, negative = false;    // the values are those of the file, conjugated or negated
};

class MappedSource final : public Source {
 public:
  explicit MappedSource(std::string description) { description_ = std::move(description); }

  // The caller has checked that all elements are in the file. False: the name exists.
  [[nodiscard]] bool add(const std::string& name, TensorForm form, MappedTensor place);
  // Adds the tensor `kept` under another name.
  void share(const std::string& name, const std::string& kept);
  void set_notes(std::map<std::string, std::string> notes) { notes_ = std::move(notes); }
  const MappedTensor& place(const std::string& name) const { return places_.at(name); }

  at::Tensor view(const std::string& name) const override;
  void read(const std::string& name, const at::Tensor& to, const Slice& slice, bool convert) const override;

 private:
  std::map<std::string, MappedTensor> places_;
};

// A view of the memory at `begin`, which keeps the file mapped. The memory is aligned for the dtype.
at::Tensor mapped_tensor(const std::shared_ptr<const MappedFile>& file, std::uint64_t begin,
                         const TensorForm& form);

std::shared_ptr<MappedSource> open_safetensors(const std::filesystem::path& path);
// root: the name of a file that is one tensor, and the begin of all other names. Empty: as open_source()
// says.
std::shared_ptr<MappedSource> open_torch_file(std::shared_ptr<const MappedFile> file, OpenOptions options,
                                              const std::string& root = "");
// A folder of torch.distributed.checkpoint.
inline constexpr auto dcp_metadata = ".metadata";
std::shared_ptr<Source> open_dcp(const std::filesystem::path& folder, OpenOptions options);

}  // namespace weft::weights
