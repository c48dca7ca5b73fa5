#include <weft/rpc/transport/shm/segment.h>

#include <weft/rpc/core/error.h>
#include <weft/rpc/transport/shm/sealed_memory.h>

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <string>
#include <system_error>

namespace weft::rpc {
namespace {

std::string reason(int error) { return std::system_category().message(error); }

bool is_capacity(std::size_t bytes) {
  return std::has_single_bit(bytes) && bytes >= ShmSegment::smallest && bytes <= ShmSegment::largest;
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
