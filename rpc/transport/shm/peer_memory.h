// PeerMemory: reads the memory of the process at the other end of a Unix socket (process_vm_readv).
//
// Only the kernel identifies that process (SO_PEERCRED, a pidfd). A proof shows that it can be read, and that
// it is the process that uses the socket, not one that created the socket and passed it on: the other side
// copies 16 bytes that this side chose into its memory, and sends their address. This side never grants
// additional permissions (PR_SET_PTRACER); if the system refuses, bulk travels through the ring.
// Thread-safety: none; read() blocks while it copies.
#pragma once

#include <weft/rpc/core/export.h>
#include <weft/rpc/transport/shm/descriptor.h>

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <system_error>

namespace weft::rpc {

class WEFT_EXPORT PeerMemory {
 public:
  using Nonce = std::array<std::byte, 16>;  // random bytes, of one connection
  static Nonce make_nonce();                // throws unavailable if the system has no random bytes

  // Empty if the kernel cannot identify the process (another pid namespace), or offers no pidfd for it.
  static std::optional<PeerMemory> of(int socket);

  // Whether the other process has `nonce` at `address`, and the memory can be read.
  bool proves(std::uint64_t address, const Nonce& nonce) const;

  // Reads all bytes or fails: the memory is not mapped, must not be read, or the process has ended. The
  // process is checked to be alive after the read, so its pid was not reused and the bytes are from the
  // proven process.
  void read(std::uint64_t address, std::span<std::byte> into, std::error_code& error) const;
  // Whether the other process has not ended.
  bool alive() const;

 private:
  PeerMemory(pid_t process, Descriptor pidfd) : process_(process), pidfd_(std::move(pidfd)) {}

  pid_t process_;
  Descriptor pidfd_;  // readable once the process has ended
};

// The user of the other side of a Unix socket, as the kernel reports it; empty if it does not.
WEFT_EXPORT std::optional<uid_t> peer_user(int socket);

}  // namespace weft::rpc
