#include <weft/rpc/transport/shm/sealed_memory.h>

#include <weft/rpc/core/error.h>

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace weft::rpc {
namespace {

// Since Linux 6.3; systems with vm.memfd_noexec=2 refuse a memfd without it.
constexpr unsigned noexec_seal = 0x0008;

[[noreturn]] void have_none(ErrorKind kind, const char* call) {
  throw Error(kind, std::string("cannot create memory to share with another process: ") + call + ": " +
                        std::system_category().message(errno));
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

}  // namespace weft::rpc
