#include <weft/rpc/transport/shm/segment.h>

#include <weft/rpc/core/error.h>

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <string>
#include <system_error>

namespace weft::rpc {
namespace {

// Since Linux 6.3; systems with vm.memfd_noexec=2 make no memfd without it.
constexpr unsigned noexec_seal = 0x0008;

std::string reason(int error) { return std::system_category().message(error); }

bool is_capacity(std::size_t bytes) {
  return std::has_single_bit(bytes) && bytes >= ShmSegment::smallest && bytes <= ShmSegment::largest;
}

Descriptor make_memory() {
  int number = ::memfd_create("weft-ring", MFD_CLOEXEC | MFD_ALLOW_SEALING | noexec_seal);
  if (number < 0 && errno == EINVAL) number = ::memfd_create("weft-ring", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (number < 0)
    throw Error(errno == EMFILE || errno == ENFILE || errno == ENOMEM ? ErrorKind::resource_exhausted
                                                                      : ErrorKind::unsupported,
                "no memory to share with another process: memfd_create: " + reason(errno));
  return Descriptor(number);
}

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorKind::protocol_error, "bad shared memory from the other side: " + what);
}

}  // namespace

std::size_t ShmSegment::page_size() {
  static const auto size = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return size;
}

std::size_t ShmSegment::capacity_for(std::size_t bytes) {
  return std::bit_ceil(std::clamp(bytes, smallest, largest));
}

ShmSegment ShmSegment::create(std::size_t capacity) {
  if (!is_capacity(capacity))
    throw Error(ErrorKind::invalid_argument,
                "a ring of " + std::to_string(capacity) + " bytes: a power of two from 64 KiB to 1 GiB");
  Descriptor memory = make_memory();
  if (::ftruncate(memory.get(), static_cast<off_t>(page_size() + capacity)) != 0)
    throw Error(ErrorKind::resource_exhausted,
                "no memory to share with another process: ftruncate: " + reason(errno));
  if (::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    throw Error(ErrorKind::unsupported, "memory to share cannot be sealed: " + reason(errno));
  return ShmSegment(std::move(memory), capacity);
}

ShmSegment ShmSegment::open(Descriptor memory, std::size_t most) {
  // Seals first: what is measured before them can still change. A sealed file of huge pages is no use
  // either: a page that cannot be had kills whoever touches it.
  const int seals = ::fcntl(memory.get(), F_GET_SEALS);
  constexpr int needed = F_SEAL_SHRINK | F_SEAL_GROW;
  if (seals < 0 || (seals & needed) != needed) refuse("its size is not sealed");
  struct statfs filesystem{};
  if (::fstatfs(memory.get(), &filesystem) != 0 || filesystem.f_type != TMPFS_MAGIC) refuse("not a memfd");
  struct stat info{};
  if (::fstat(memory.get(), &info) != 0 || !S_ISREG(info.st_mode)) refuse("not a memfd");
  const auto size = static_cast<std::uint64_t>(std::max<off_t>(info.st_size, 0));
  const std::uint64_t capacity = size - std::min<std::uint64_t>(size, page_size());
  if (!is_capacity(capacity) || capacity > most) refuse("a size of " + std::to_string(size) + " bytes");
  return ShmSegment(std::move(memory), capacity);
}

ShmSegment::ShmSegment(Descriptor memory, std::size_t capacity)
    : memory_(std::move(memory)), capacity_(capacity) {
  const std::size_t page = page_size();
  // The addresses are reserved first, so that the two views are neighbours.
  void* reserved =
      ::mmap(nullptr, page + 2 * capacity, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED)
    throw Error(ErrorKind::resource_exhausted, "cannot map shared memory: " + reason(errno));
  base_ = static_cast<std::byte*>(reserved);
  const auto map = [&](std::size_t at, std::size_t size, std::size_t offset) {
    return ::mmap(base_ + at, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory_.get(),
                  static_cast<off_t>(offset)) != MAP_FAILED;
  };
  if (map(0, page + capacity, 0) && map(page + capacity, capacity, page)) return;
  const int error = errno;
  unmap();
  if (error == EPERM || error == EACCES) refuse("it may not be written");
  throw Error(ErrorKind::resource_exhausted, "cannot map shared memory: " + reason(error));
}

ShmSegment::ShmSegment(ShmSegment&& other) noexcept
    : memory_(std::move(other.memory_)),
      base_(std::exchange(other.base_, nullptr)),
      capacity_(std::exchange(other.capacity_, 0)) {}

ShmSegment& ShmSegment::operator=(ShmSegment&& other) noexcept {
  if (this == &other) return *this;
  unmap();
  memory_ = std::move(other.memory_);
  base_ = std::exchange(other.base_, nullptr);
  capacity_ = std::exchange(other.capacity_, 0);
  return *this;
}

ShmSegment::~ShmSegment() { unmap(); }

void ShmSegment::unmap() {
  if (base_ != nullptr) ::munmap(std::exchange(base_, nullptr), page_size() + 2 * capacity_);
}

}  // namespace weft::rpc
