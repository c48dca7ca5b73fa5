#include <weft/rpc/store/store_log.h>

#include <weft/rpc/wire/checksum.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>

namespace weft::rpc {
namespace {

constexpr std::string_view magic = "weftkv1\n";
constexpr std::size_t prefix_size = 8;
constexpr char op_set = 1, op_remove = 2;

std::string system_message() { return std::strerror(errno); }

void put(std::string& bytes, std::uint32_t number) {
  for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(number >> shift & 0xff);
}
std::uint32_t number_at(std::string_view bytes, std::size_t at) {
  std::uint32_t number = 0;
  for (std::size_t i = 0; i < 4; ++i)
    number |= std::uint32_t{static_cast<unsigned char>(bytes[at + i])} << (8 * i);
  return number;
}
std::uint32_t checksum(std::string_view bytes) { return crc32c(std::as_bytes(std::span(bytes))); }

std::string encode(const StoreLog::Record& record) {
  std::string payload(1, record.value ? op_set : op_remove);
  put(payload, static_cast<std::uint32_t>(record.key.size()));
  payload += record.key;
  if (record.value) payload += *record.value;
  if (payload.size() > UINT32_MAX / 2)
    throw Error(ErrorKind::invalid_argument, "a value of 2 GB is too large for a store");
  std::string bytes;
  put(bytes, static_cast<std::uint32_t>(payload.size()));
  put(bytes, checksum(payload));
  return bytes + payload;
}

std::optional<StoreLog::Record> decode(std::string_view payload) {
  if (payload.size() < 5 || (payload[0] != op_set && payload[0] != op_remove)) return std::nullopt;
  const std::size_t key_size = number_at(payload, 1);
  if (key_size > payload.size() - 5) return std::nullopt;
  StoreLog::Record record{std::string(payload.substr(5, key_size)), std::nullopt};
  if (payload[0] == op_set) record.value = payload.substr(5 + key_size);
  return record;
}

}  // namespace

StoreLog::StoreLog(std::string path)
    : path_(std::move(path)), file_(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
  if (file_ < 0)
    throw Error(ErrorKind::unavailable, "cannot open the store " + path_ + ": " + system_message());
}

StoreLog::~StoreLog() { ::close(file_); }

bool StoreLog::try_lock(bool exclusive) {
  while (::flock(file_, (exclusive ? LOCK_EX : LOCK_SH) | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return false;
    if (errno != EINTR)
      throw Error(ErrorKind::unavailable, "cannot lock the store " + path_ + ": " + system_message());
  }
  return true;
}

void StoreLog::unlock() { ::flock(file_, LOCK_UN); }

void StoreLog::damaged(const std::string& how) const {
  throw Error(ErrorKind::protocol_error, "the store " + path_ + " is damaged: " + how);
}

void StoreLog::read(const std::function<void(Record)>& apply) {
  struct stat status{};
  if (::fstat(file_, &status) != 0)
    throw Error(ErrorKind::unavailable, "the store " + path_ + ": " + system_message());
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (size < position_) damaged("it is shorter than it was");
  std::string bytes(size - position_, '\0');
  for (std::size_t filled = 0; filled < bytes.size();) {
    const ssize_t n =
        ::pread(file_, bytes.data() + filled, bytes.size() - filled, static_cast<off_t>(position_ + filled));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw Error(ErrorKind::unavailable, "the store " + path_ + ": " + system_message());
    if (n == 0) bytes.resize(filled);
    filled += static_cast<std::size_t>(n);
  }
  std::string_view rest = bytes;
  if (position_ == 0) {
    if (!magic.starts_with(rest.substr(0, magic.size()))) damaged("it does not begin as a store does");
    if (rest.size() < magic.size()) return;
    rest.remove_prefix(magic.size());
    position_ = magic.size();
  }
  while (rest.size() >= prefix_size) {
    const std::size_t payload_size = number_at(rest, 0);
    if (payload_size > rest.size() - prefix_size) return;  // cut short
    const std::string_view payload = rest.substr(prefix_size, payload_size);
    auto record = checksum(payload) == number_at(rest, 4) ? decode(payload) : std::nullopt;
    if (!record) {
      if (payload_size == rest.size() - prefix_size) return;  // the last one: cut short, its length not
      damaged("a record at " + std::to_string(position_) + " is wrong");
    }
    rest.remove_prefix(prefix_size + payload_size);
    position_ += prefix_size + payload_size;
    apply(std::move(*record));
  }
}

void StoreLog::append(const Record& record) {
  if (::ftruncate(file_, static_cast<off_t>(position_)) != 0)  // what a dead writer left
    throw Error(ErrorKind::unavailable, "cannot write to the store " + path_ + ": " + system_message());
  const std::string bytes = encode(record);
  write_at_end(position_ == 0 ? std::string(magic) + bytes : bytes);
}

void StoreLog::write_at_end(const std::string& bytes) {
  for (std::size_t written = 0; written < bytes.size();) {
    const ssize_t n = ::pwrite(file_, bytes.data() + written, bytes.size() - written,
                               static_cast<off_t>(position_ + written));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const Error error(
          errno == ENOSPC || errno == EDQUOT ? ErrorKind::resource_exhausted : ErrorKind::unavailable,
          "cannot write to the store " + path_ + ": " + system_message());
      [[maybe_unused]] const int ignored = ::ftruncate(file_, static_cast<off_t>(position_));
      throw error;
    }
    written += static_cast<std::size_t>(n);
  }
  position_ += bytes.size();
}

}  // namespace weft::rpc
