// PeerMemory: reads the memory of the process at the other end of a Unix socket (process_vm_readv).
//
// The kernel reports which process made the other end (SO_PEERCRED, a pidfd). That process may have passed
// the socket on to another one. So this side sends 16 bytes (a nonce), and the other side copies them into
// its memory and sends their address. If this side reads the nonce there, that proves that the process uses
// the socket and that its memory can be read. This side never grants additional permissions (PR_SET_PTRACER).
// If the system refuses the read, attachments are sent through the ring. Thread-safety: none; read() blocks
// while it copies.
#pragma once

#include <weft/rpc/core/descriptor.h>
#include <weft/rpc/core/export.h>

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

  // The process at the other end of the socket. Empty if the kernel cannot identify it (another pid
  // namespace), or has no pidfd for it.
  static std::optional<PeerMemory> of(int socket);

  // Whether this side can read `nonce` at `address` of the other process.
  bool proves(std::uint64_t address, const Nonce& nonce) const;

  // Reads all bytes, or sets `error`: the memory is not mapped, this side may not read it, or the process has
  // ended. read() checks after the read that the process is alive. So its pid was not reused, and the bytes
  // are from the process that has proved itself.
  void read(std::uint64_t address, std::span<std::byte> into, std::error_code& error) const;
  // Whether the other process has not ended.
  bool alive() const;

 private:
  PeerMemory(pid_t process, Descriptor pidfd) : process_(process), pidfd_(std::move(pidfd)) {}

  pid_t process_;
  Descriptor pidfd_;  // readable once the process has ended
};

// The user of the other side of a Unix socket, as the kernel reports it. Empty if the kernel reports none.
WEFT_EXPORT std::optional<uid_t> peer_user(int socket);

}  // namespace weft::rpc
