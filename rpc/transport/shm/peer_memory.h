// PeerMemory: reads the memory of the process at the other end of a Unix socket (process_vm_readv).
//
// Who that is says the kernel alone (SO_PEERCRED, a pidfd). That it may be read, and that it is the process
// which speaks on the socket and not one that made it and handed it on, shows a proof: it puts 16 bytes that
// this side chose into its memory and says where. No permission is ever given in return (PR_SET_PTRACER):
// where the system refuses, bulk goes another way. Thread-safety: none; read() blocks while it copies.
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
  using Nonce = std::array<std::byte, 16>;
  static Nonce make_nonce();  // throws unavailable where the system has no random bytes

  // Nothing where the kernel cannot say who is there (another pid namespace), or has no pidfd of it.
  static std::optional<PeerMemory> of(int socket);

  // Whether `nonce` lies at that address of the other's memory, and may be read.
  bool proves(std::uint64_t address, const Nonce& nonce) const;

  // All of it or an error: what is not mapped there, what may not be read, or a process that has ended. What
  // was read is from the process that was proved: afterwards it still lives, so that its pid is its own.
  void read(std::uint64_t address, std::span<std::byte> into, std::error_code& error) const;
  bool alive() const;

 private:
  PeerMemory(pid_t process, Descriptor pidfd) : process_(process), pidfd_(std::move(pidfd)) {}

  pid_t process_;
  Descriptor pidfd_;  // a pidfd: readable once the process has ended
};

// The user that the kernel names as the other side of a Unix socket; nothing where it does not.
WEFT_EXPORT std::optional<uid_t> peer_user(int socket);

}  // namespace weft::rpc
