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
#include <system_error>

namespace weft::rpc {
namespace {

// Since Linux 6.3; systems with vm.memfd_noexec=2 refuse a memfd without it.
constexpr unsigned noexec_seal = 0x0008;

std::string reason(int error) { return std::system_category().message(error); }

[[noreturn]] void have_none(ErrorKind kind, const char* call) {
  throw Error(kind, std::string("cannot create memory to share with another process: ") + call + ": " +
                        reason(errno));
}

bool is_capacity(std::size_t bytes) {
  return std::has_single_bit(bytes) && bytes >= ShmSegment::smallest && bytes <= ShmSegment::largest;
}

}  // namespace

Descriptor make_sealed_memory(const char* name, std::size_t bytes) {
  int number = ::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | noexec_seal);
  if (number < 0 && errno == EINVAL) number = ::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (number < 0)
    have_none(errno == EMFILE || errno == ENFILE || errno == ENOMEM ? ErrorKind::resource_exhausted
                                                                    : ErrorKind::unsupported,
              "memfd_create");
  Descriptor memory(number);
  if (::ftruncate(memory.get(), static_cast<off_t>(bytes)) != 0)
    have_none(ErrorKind::resource_exhausted, "ftruncate");
  if (::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    have_none(ErrorKind::unsupported, "it cannot be sealed");
  return memory;
}

std::uint64_t expect_sealed_memory(const Descriptor& memory) {
  // Check the seals first: before they are set, the size can change. A sealed file of huge pages is refused,
  // too: if a page cannot be allocated, the process that accesses it is killed.
  const int seals = ::fcntl(memory.get(), F_GET_SEALS);
  constexpr int needed = F_SEAL_SHRINK | F_SEAL_GROW;
  if (seals < 0 || (seals & needed) != needed) refuse_memory("its size is not sealed");
  struct statfs filesystem{};
  if (::fstatfs(memory.get(), &filesystem) != 0 || filesystem.f_type != TMPFS_MAGIC)
    refuse_memory("not a memfd");
  struct stat info{};
  if (::fstat(memory.get(), &info) != 0 || !S_ISREG(info.st_mode)) refuse_memory("not a memfd");
  return static_cast<std::uint64_t>(std::max<off_t>(info.st_size, 0));
}

void refuse_memory(const std::string& what) {
  throw Error(ErrorKind::protocol_error, "bad shared memory from the other side: " + what);
}

std::size_t ShmSegment::page_size() {
  static const auto size = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return size;
}

std::size_t ShmSegment::capacity_for(std::size_t bytes) {
  return std::bit_ceil(std::clamp(bytes, smallest, largest));
}

ShmSegment ShmSegment::create(std::size_t capacity) {
  if (!is_capacity(capacity))
    throw Error(ErrorKind::invalid_argument, "a ring of " + std::to_string(capacity) +
                                                 " bytes, expected a power of two from 64 KiB to 1 GiB");
  Descriptor memory = make_sealed_memory("weft-ring", page_size() + capacity);
  return ShmSegment(std::move(memory), capacity);
}

ShmSegment ShmSegment::open(Descriptor memory, std::size_t max_bytes) {
  const std::uint64_t size = expect_sealed_memory(memory);
  const std::uint64_t capacity = size - std::min<std::uint64_t>(size, page_size());
  if (!is_capacity(capacity) || capacity > max_bytes)
    refuse_memory("a size of " + std::to_string(size) +
                  " bytes, expected one page and a power of two from 64 KiB to " + std::to_string(max_bytes));
  return ShmSegment(std::move(memory), capacity);
}

ShmSegment::ShmSegment(Descriptor memory, std::size_t capacity)
    : memory_(std::move(memory)), capacity_(capacity) {
  const std::size_t page = page_size(), whole = page + 2 * capacity;
  // Reserve the addresses first, so that the two mappings of the data are adjacent.
  void* reserved = ::mmap(nullptr, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED)
    throw Error(ErrorKind::resource_exhausted, "cannot map shared memory: " + reason(errno));
  base_ = {static_cast<std::byte*>(reserved), Unmap{whole}};
  const auto map = [&](std::size_t at, std::size_t size, std::size_t offset) {
    return ::mmap(base_.get() + at, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory_.get(),
                  static_cast<off_t>(offset)) != MAP_FAILED;
  };
  if (map(0, page + capacity, 0) && map(page + capacity, capacity, page)) return;
  const int error = errno;
  if (error == EPERM || error == EACCES) refuse_memory("it may not be written");
  throw Error(ErrorKind::resource_exhausted, "cannot map shared memory: " + reason(error));
}

void ShmSegment::Unmap::operator()(std::byte* base) const { ::munmap(base, bytes); }

}  // namespace weft::rpc
