#include <weft/rpc/job/store/store_log.h>

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
constexpr std::size_t fixed_size = 13;  // of a payload, before key and value
constexpr std::size_t beat_size = 8;

std::string system_message() { return std::strerror(errno); }

template <class T>
void put(std::string& bytes, T number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
}
template <class T>
T number_at(std::string_view bytes, std::size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}
std::uint32_t checksum(std::string_view payload) {
  const bool beats = !payload.empty() && payload[0] == static_cast<char>(StoreLog::Kind::grant) &&
                     payload.size() >= beat_size;
  if (beats) payload.remove_suffix(beat_size);
  return crc32c(std::as_bytes(std::span(payload)));
}

std::string encode(const StoreLog::Record& record) {
  std::string payload(1, static_cast<char>(record.kind));
  put(payload, record.lease);
  put(payload, static_cast<std::uint32_t>(record.key.size()));
  payload += record.key;
  if (record.kind == StoreLog::Kind::grant) {
    put(payload, static_cast<std::uint64_t>(record.ttl.count()));
    put(payload, std::uint64_t{0});
  } else {
    payload += record.value;
  }
  if (payload.size() > UINT32_MAX / 2)
    throw Error(ErrorKind::invalid_argument,
                "store: the record of '" + record.key + "' has " + std::to_string(payload.size()) +
                    " bytes, expected at most " + std::to_string(UINT32_MAX / 2));
  std::string bytes;
  put(bytes, static_cast<std::uint32_t>(payload.size()));
  put(bytes, checksum(payload));
  return bytes + payload;
}

// `at`: the position of the payload in the file.
std::optional<StoreLog::Record> decode(std::string_view payload, std::uint64_t at) {
  using Kind = StoreLog::Kind;
  if (payload.size() < fixed_size || payload[0] < static_cast<char>(Kind::set) ||
      payload[0] > static_cast<char>(Kind::end))
    return std::nullopt;
  StoreLog::Record record;
  record.kind = static_cast<Kind>(payload[0]);
  record.lease = number_at<std::uint64_t>(payload, 1);
  const std::size_t key_size = number_at<std::uint32_t>(payload, 9);
  if (key_size > payload.size() - fixed_size) return std::nullopt;
  record.key = payload.substr(fixed_size, key_size);
  const std::string_view value = payload.substr(fixed_size + key_size);
  if (record.kind == Kind::grant) {
    if (value.size() != 8 + beat_size) return std::nullopt;
    record.ttl = std::chrono::nanoseconds{static_cast<std::int64_t>(number_at<std::uint64_t>(value, 0))};
    record.beat_at = at + payload.size() - beat_size;
  } else {
    record.value = value;
  }
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

void StoreLog::failed(const std::string& what) const {
  const bool full = errno == ENOSPC || errno == EDQUOT;
  throw Error(full ? ErrorKind::resource_exhausted : ErrorKind::unavailable,
              what + path_ + ": " + system_message());
}

bool StoreLog::grown() const {
  struct stat status{};
  return ::fstat(file_, &status) != 0 || static_cast<std::uint64_t>(status.st_size) != position_;
}

void StoreLog::read(const std::function<void(Record)>& apply) {
  struct stat status{};
  if (::fstat(file_, &status) != 0) failed("the store ");
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (size < position_)
    damaged("its file has " + std::to_string(size) + " bytes, expected at least " +
            std::to_string(position_));
  std::string bytes(size - position_, '\0');
  for (std::size_t filled = 0; filled < bytes.size();) {
    const ssize_t n =
        ::pread(file_, bytes.data() + filled, bytes.size() - filled, static_cast<off_t>(position_ + filled));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) failed("the store ");
    if (n == 0) bytes.resize(filled);
    filled += static_cast<std::size_t>(n);
  }
  std::string_view rest = bytes;
  if (position_ == 0) {
    if (!magic.starts_with(rest.substr(0, magic.size()))) damaged("its file does not begin with 'weftkv1'");
    if (rest.size() < magic.size()) return;
    rest.remove_prefix(magic.size());
    position_ = magic.size();
  }
  while (rest.size() >= prefix_size) {
    const std::size_t payload_size = number_at<std::uint32_t>(rest, 0);
    if (payload_size > rest.size() - prefix_size) return;  // incomplete
    const std::string_view payload = rest.substr(prefix_size, payload_size);
    auto record = checksum(payload) == number_at<std::uint32_t>(rest, 4)
                      ? decode(payload, position_ + prefix_size)
                      : std::nullopt;
    if (!record) {
      if (payload_size == rest.size() - prefix_size) return;  // the last one: incomplete
      damaged("malformed record at byte " + std::to_string(position_));
    }
    rest.remove_prefix(prefix_size + payload_size);
    position_ += prefix_size + payload_size;
    apply(std::move(*record));
  }
}

StoreLog::Record StoreLog::append(Record record) {
  if (::ftruncate(file_, static_cast<off_t>(position_)) != 0)  // removes what a dead writer left
    failed("cannot write to the store ");
  const std::string bytes = position_ == 0 ? std::string(magic) + encode(record) : encode(record);
  try {
    write_at(position_, bytes);
  } catch (const Error&) {
    [[maybe_unused]] const int ignored = ::ftruncate(file_, static_cast<off_t>(position_));
    throw;
  }
  position_ += bytes.size();
  if (record.kind == Kind::grant) record.beat_at = position_ - beat_size;
  return record;
}

std::uint64_t StoreLog::beat(std::uint64_t at) const {
  char bytes[beat_size];
  ssize_t n = 0;
  do {
    n = ::pread(file_, bytes, sizeof bytes, static_cast<off_t>(at));
  } while (n < 0 && errno == EINTR);
  if (n < 0) failed("the store ");
  if (n != sizeof bytes) damaged("its file ends within the lease at byte " + std::to_string(at));
  return number_at<std::uint64_t>(std::string_view(bytes, sizeof bytes), 0);
}

void StoreLog::set_beat(std::uint64_t at, std::uint64_t beat) {
  std::string bytes;
  put(bytes, beat);
  write_at(at, bytes);
}

void StoreLog::write_at(std::uint64_t at, const std::string& bytes) {
  for (std::size_t written = 0; written < bytes.size();) {
    const ssize_t n =
        ::pwrite(file_, bytes.data() + written, bytes.size() - written, static_cast<off_t>(at + written));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) failed("cannot write to the store ");
    written += static_cast<std::size_t>(n);
  }
}

}  // namespace weft::rpc
