#include <weft/rpc/transport/shm/peer_memory.h>

#include <weft/rpc/core/error.h>

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>

namespace weft::rpc {
namespace {

constexpr std::size_t max_a_read = 256U << 20;  // the kernel's limit is just below 2 GiB
#if defined(SO_PEERPIDFD)
constexpr int peer_pidfd = SO_PEERPIDFD;
#elif defined(__x86_64__) || defined(__aarch64__)
constexpr int peer_pidfd = 77;  // since Linux 6.5; on other architectures the number has another meaning
#else
constexpr int peer_pidfd = -1;
#endif

std::optional<ucred> credentials(int socket) {
  ucred found{};
  socklen_t size = sizeof found;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &found, &size) != 0 || size != sizeof found) return {};
  return found;
}

Descriptor open_pidfd(int socket, pid_t process) {
  int number = -1;
  socklen_t size = sizeof number;
  if (::getsockopt(socket, SOL_SOCKET, peer_pidfd, &number, &size) == 0) return Descriptor(number);
  // If the pid has been given to another process by now, the proof fails later.
  return Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, process, 0)));
}

}  // namespace

PeerMemory::Nonce PeerMemory::make_nonce() {
  Nonce nonce;
  if (::getrandom(nonce.data(), nonce.size(), 0) != static_cast<ssize_t>(nonce.size()))
    throw Error(ErrorKind::unavailable, "the system has no random bytes");
  return nonce;
}

std::optional<PeerMemory> PeerMemory::of(int socket) {
  const auto peer = credentials(socket);
  if (!peer || peer->pid <= 0) return {};
  Descriptor pidfd = open_pidfd(socket, peer->pid);
  if (!pidfd) return {};
  return PeerMemory(peer->pid, std::move(pidfd));
}

bool PeerMemory::proves(std::uint64_t address, const Nonce& nonce) const {
  Nonce found{};
  std::error_code error;
  read(address, found, error);
  return !error && found == nonce;
}

void PeerMemory::read(std::uint64_t address, std::span<std::byte> into, std::error_code& error) const {
  while (!into.empty()) {
    const iovec here{into.data(), std::min(into.size(), max_a_read)};
    const iovec there{reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)), here.iov_len};
    const ssize_t bytes = ::process_vm_readv(process_, &here, 1, &there, 1, 0);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) {
      error.assign(bytes == 0 ? EFAULT : errno, std::system_category());
      return;
    }
    into = into.subspan(static_cast<std::size_t>(bytes));
    address += static_cast<std::uint64_t>(bytes);
  }
  if (!alive()) error.assign(ESRCH, std::system_category());
}

bool PeerMemory::alive() const {
  pollfd pidfd{pidfd_.get(), POLLIN, 0};
  return ::poll(&pidfd, 1, 0) == 0;
}

std::optional<uid_t> peer_user(int socket) {
  const auto peer = credentials(socket);
  if (!peer) return {};
  return peer->uid;
}

}  // namespace weft::rpc
