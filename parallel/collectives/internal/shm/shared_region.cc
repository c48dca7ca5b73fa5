#include <weft/parallel/collectives/internal/shm/shared_region.h>

#include <weft/rpc/core/error.h>
#include <weft/rpc/transport/shm/segment.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <system_error>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace weft::collectives {
namespace {

std::string reason(int error) { return std::system_category().message(error); }

std::uint64_t random_number() {
  std::random_device device;
  return std::uint64_t{device()} << 32 | device();
}

}  // namespace

std::string SharedRegion::this_host() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::error_code error;
  return boot + " " + std::filesystem::read_symlink("/proc/self/ns/pid", error).string() +
         " uid:" + std::to_string(::geteuid());
}

std::shared_ptr<SharedRegion> SharedRegion::create(std::size_t bytes) {
  std::shared_ptr<SharedRegion> region(new SharedRegion(rpc::make_sealed_memory("weft-group", bytes), bytes));
  const std::array<std::uint64_t, 2> token{random_number(), random_number()};
  std::memcpy(region->base_, token.data(), sizeof token);
  return region;
}

std::shared_ptr<SharedRegion> SharedRegion::unshared(std::size_t bytes) {
  return std::shared_ptr<SharedRegion>(new SharedRegion(rpc::Descriptor{}, bytes));
}

std::shared_ptr<SharedRegion> SharedRegion::open(const RegionAddress& address) {
  const std::string path =
      "/proc/" + std::to_string(address.process) + "/fd/" + std::to_string(address.descriptor);
  rpc::Descriptor memory(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!memory)
    throw rpc::Error(rpc::ErrorKind::unavailable,
                     "the memory of another process cannot be shared: " + path + ": " + reason(errno));
  const std::uint64_t bytes = rpc::expect_sealed_memory(memory);
  if (bytes != address.bytes || bytes < sizeof address.token)
    rpc::refuse_memory("its size is " + std::to_string(bytes) + " bytes, expected " +
                       std::to_string(address.bytes));
  std::shared_ptr<SharedRegion> region(new SharedRegion(std::move(memory), bytes));
  // The process may have ended, and another process may have its number.
  if (std::memcmp(region->base_, address.token.data(), sizeof address.token) != 0)
    rpc::refuse_memory("it is not the memory that the other rank announced");
  region->close_descriptor();
  return region;
}

SharedRegion::SharedRegion(rpc::Descriptor memory, std::size_t bytes)
    : memory_(std::move(memory)), bytes_(bytes) {
  const int flags = (memory_ ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS) | MAP_NORESERVE;
  void* const mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, memory_ ? memory_.get() : -1, 0);
  if (mapped == MAP_FAILED)
    throw rpc::Error(
        rpc::ErrorKind::resource_exhausted,
        "cannot map " + std::to_string(bytes) + " bytes of memory for a group's ranks: " + reason(errno));
  base_ = static_cast<std::byte*>(mapped);
}

SharedRegion::~SharedRegion() { ::munmap(base_, bytes_); }

RegionAddress SharedRegion::address() const {
  RegionAddress address{
      .host = this_host(), .process = ::getpid(), .descriptor = memory_.get(), .bytes = bytes_, .token = {}};
  std::memcpy(address.token.data(), base_, sizeof address.token);
  return address;
}

void SharedRegion::provide(std::size_t begin, std::size_t bytes) const {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t first = begin / page * page;
  if (::madvise(base_ + first, begin + bytes - first, MADV_POPULATE_WRITE) == 0) return;
  if (errno == EINVAL) return;  // before Linux 5.14: then the fault occurs at the first write
  throw rpc::Error(rpc::ErrorKind::resource_exhausted,
                   "no memory for " + std::to_string(bytes) + " bytes to share: " + reason(errno));
}

}  // namespace weft::collectives
