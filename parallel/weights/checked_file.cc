#include <weft/parallel/weights/checked_file.h>

#include <weft/rpc/core/error.h>
#include <weft/rpc/wire/checksum.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>

namespace weft::weights {

CheckedFile::CheckedFile(std::filesystem::path path, int flags)
    : path_(std::move(path)), fd_(::open(path_.c_str(), flags | O_CLOEXEC, 0644)) {
  if (fd_ < 0) fail_with_errno("cannot be opened");
}

CheckedFile::~CheckedFile() { ::close(fd_); }

namespace {

// Calls `some` (like read(2), with the number of bytes done so far) until all bytes are done. False: the file
// ended before.
template <class Some>
bool transfer(const CheckedFile& file, std::size_t bytes, const char* failed, Some some) {
  for (std::size_t done = 0; done != bytes;) {
    const ssize_t now = some(done);
    if (now < 0 && errno == EINTR) continue;
    if (now < 0) file.fail_with_errno(failed);
    if (now == 0) return false;
    done += static_cast<std::size_t>(now);
  }
  return true;
}

constexpr auto cannot_write = "cannot be written", cannot_read = "cannot be read",
               too_short = "is damaged: it ends too soon";

}  // namespace

void CheckedFile::write(const void* data, std::size_t bytes) {
  crc_ = rpc::crc32c({static_cast<const std::byte*>(data), bytes}, crc_);
  const auto* from = static_cast<const char*>(data);
  transfer(*this, bytes, cannot_write,
           [&](std::size_t done) { return ::write(fd_, from + done, bytes - done); });
}

void CheckedFile::read(void* data, std::size_t bytes) {
  auto* to = static_cast<char*>(data);
  if (!transfer(*this, bytes, cannot_read,
                [&](std::size_t done) { return ::read(fd_, to + done, bytes - done); }))
    fail(too_short);
  crc_ = rpc::crc32c({static_cast<const std::byte*>(data), bytes}, crc_);
}

void CheckedFile::write_at(std::uint64_t offset, const void* data, std::size_t bytes) {
  const auto* from = static_cast<const char*>(data);
  transfer(*this, bytes, cannot_write, [&](std::size_t done) {
    return ::pwrite(fd_, from + done, bytes - done, static_cast<off_t>(offset + done));
  });
}

void CheckedFile::read_at(std::uint64_t offset, void* data, std::size_t bytes) const {
  auto* to = static_cast<char*>(data);
  if (!transfer(*this, bytes, cannot_read, [&](std::size_t done) {
        return ::pread(fd_, to + done, bytes - done, static_cast<off_t>(offset + done));
      }))
    fail(too_short);
}

void CheckedFile::sync() {
  if (::fsync(fd_) != 0) fail_with_errno("cannot be synced");
}

bool CheckedFile::claim() {
  if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) return false;
  // Between open() and flock() the other writer may have published this file under its final name.
  struct stat opened = {}, named = {};
  if (::fstat(fd_, &opened) != 0) fail_with_errno("cannot be examined");
  return ::stat(path_.c_str(), &named) == 0 && opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

std::uint64_t CheckedFile::size() const {
  const off_t here = ::lseek(fd_, 0, SEEK_CUR), end = ::lseek(fd_, 0, SEEK_END);
  if (here < 0 || end < 0 || ::lseek(fd_, here, SEEK_SET) < 0) fail_with_errno("cannot be measured");
  return static_cast<std::uint64_t>(end);
}

void CheckedFile::reserve(std::uint64_t bytes) {
  if (bytes > static_cast<std::uint64_t>(std::numeric_limits<off_t>::max())) fail("would be too large");
  if (::ftruncate(fd_, static_cast<off_t>(bytes)) != 0) fail_with_errno("cannot be resized");
  if (bytes == 0) return;
  int code = EINTR;
  while (code == EINTR) code = ::posix_fallocate(fd_, 0, static_cast<off_t>(bytes));
  if (code != 0) {
    errno = code;
    fail_with_errno("cannot be extended to " + std::to_string(bytes) + " bytes");
  }
}

void CheckedFile::fail(const std::string& what) const {
  throw rpc::Error(rpc::ErrorKind::failed_precondition, path_.string() + ": " + what);
}

void CheckedFile::fail_with_errno(const std::string& what) const {
  const int code = errno;
  const bool full = code == ENOSPC || code == EDQUOT || code == EFBIG;
  throw rpc::Error(full ? rpc::ErrorKind::resource_exhausted : rpc::ErrorKind::failed_precondition,
                   path_.string() + ": " + what + ": " + std::strerror(code));
}

namespace {

std::filesystem::path made_directory_of(const std::filesystem::path& path) {
  const std::filesystem::path directory = path.has_parent_path() ? path.parent_path() : ".";
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error)
    throw rpc::Error(rpc::ErrorKind::failed_precondition, directory.string() + ": " + error.message());
  return directory;
}

}  // namespace

WholeFile::WholeFile(const std::filesystem::path& path)
    : path_(path), directory_(made_directory_of(path)), file_(part_of(path), O_RDWR | O_CREAT) {
  // Without O_TRUNC: until it is locked, it may be the file of another writer.
  if (!file_.claim()) file_.fail("is being written by another writer");
  if (::ftruncate(file_.fd_, 0) != 0) file_.fail_with_errno("cannot be emptied");
}

WholeFile::~WholeFile() {
  if (!finished_) ::unlink(file_.path().c_str());
}

void WholeFile::finish() {
  file_.sync();
  if (::rename(file_.path().c_str(), path_.c_str()) != 0)
    file_.fail_with_errno("cannot be renamed to " + path_.string());
  finished_ = true;
  CheckedFile(directory_, O_RDONLY | O_DIRECTORY).sync();  // makes the name durable, too
}

void write_whole(const std::filesystem::path& path, const std::function<void(CheckedFile&)>& body) {
  WholeFile whole(path);
  body(whole.file());
  whole.finish();
}

}  // namespace weft::weights
