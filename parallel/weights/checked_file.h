// CheckedFile: a file that is written or read from its beginning to its end, with a CRC-32C over its bytes.
// WholeFile and write_whole() give a file its name only when it is completely on the disk.
//
// Errors: failed_precondition for files that cannot be read or written, or that are too short;
// resource_exhausted if the disk is full. Used by one thread.
#pragma once

#include <weft/rpc/core/export.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <vector>

namespace weft::weights {

class WEFT_EXPORT CheckedFile {
 public:
  CheckedFile(std::filesystem::path path, int flags);  // flags of open(2)
  ~CheckedFile();
  CheckedFile(const CheckedFile&) = delete;
  CheckedFile& operator=(const CheckedFile&) = delete;

  // write() and read() continue at the end of the previous call's bytes, and crc() includes their bytes.
  // count: elements to read.
  void write(const void* data, std::size_t bytes);
  void read(void* data, std::size_t bytes);
  template <class T>
  void write(const std::vector<T>& values) {
    write(values.data(), values.size() * sizeof(T));
  }
  template <class T>
  void read(std::vector<T>& values, std::size_t count) {
    values.resize(count);
    read(values.data(), count * sizeof(T));
  }
  // Write or read at `offset` bytes from the beginning. They do not change the position of write() and
  // read(), and crc() does not include their bytes.
  void write_at(std::uint64_t offset, const void* data, std::size_t bytes);
  void read_at(std::uint64_t offset, void* data, std::size_t bytes) const;
  void sync();  // fsync(2)
  // Locks the file for this writer until it is closed. False: another writer has it, or the path now names
  // another file (the opened one has been renamed or removed).
  bool claim();

  std::uint64_t size() const;  // bytes
  // Sets the size, and reserves the disk's blocks for it, so that later writes through a mapping cannot fail
  // for lack of space.
  void reserve(std::uint64_t bytes);
  int descriptor() const { return fd_; }
  // The CRC-32C of the bytes that write() and read() have processed since the last restart_crc().
  std::uint32_t crc() const { return crc_; }
  void restart_crc(std::uint32_t crc = 0) { crc_ = crc; }

  // fail() and fail_with_errno() throw failed_precondition with the file's name; fail_with_errno() adds the
  // reason in errno.
  const std::filesystem::path& path() const { return path_; }
  [[noreturn]] void fail(const std::string& what) const;
  [[noreturn]] void fail_with_errno(const std::string& what) const;

 private:
  friend class WholeFile;

  const std::filesystem::path path_;
  int fd_;
  std::uint32_t crc_ = 0;
};

// A file that replaces `path` when it is complete. It is written as path + ".part".
class WEFT_EXPORT WholeFile {
 public:
  // Creates and empties path + ".part", and the directory of `path` if it does not exist.
  // failed_precondition: another writer is writing `path` now.
  explicit WholeFile(const std::filesystem::path& path);
  ~WholeFile();  // removes the part if finish() has not been called, or has failed
  WholeFile(const WholeFile&) = delete;
  WholeFile& operator=(const WholeFile&) = delete;

  CheckedFile& file() { return file_; }  // for reading and writing
  // Syncs the part and renames it to `path`; an existing file is replaced. If the process dies before the
  // rename, `path` is unchanged.
  void finish();

  // The name of the part of a path.
  static std::filesystem::path part_of(const std::filesystem::path& path) { return path.string() + ".part"; }

 private:
  const std::filesystem::path path_, directory_;
  CheckedFile file_;
  bool finished_ = false;
};

// Calls `body` to write a WholeFile, and finishes it.
WEFT_EXPORT void write_whole(const std::filesystem::path& path,
                             const std::function<void(CheckedFile&)>& body);

}  // namespace weft::weights
