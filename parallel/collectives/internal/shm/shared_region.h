// SharedRegion: memory of one rank that all ranks of its host map.
//
// The memory is sealed (rpc/transport/shm/segment.h). Its size is a range of addresses, of which only written
// pages use memory. Another process of the same user opens it through /proc, with a RegionAddress from its
// creator; a token at the beginning of the region identifies it. The destructor unmaps the region in this
// process only. Thread-safety: a value; all ranks may access the bytes at any time.
#pragma once

#include <weft/rpc/codec/struct_codec.h>
#include <weft/rpc/core/descriptor.h>

#include <array>
#include <memory>

namespace weft::collectives {

// The data with which another process finds a region. `host` differs between kernels, process namespaces and
// users.
struct RegionAddress {
  std::string host;
  std::int64_t process = 0;
  std::int32_t descriptor = -1;
  std::uint64_t bytes = 0;
  std::array<std::uint64_t, 2> token{};
};
WEFT_CODEC(RegionAddress, host, process, descriptor, bytes, token)

class WEFT_EXPORT SharedRegion {
 public:
  // Throws the errors of make_sealed_memory(), and resource_exhausted if no addresses are left.
  static std::shared_ptr<SharedRegion> create(std::size_t bytes);
  // The region of another process of this host, or of this process. Throws unavailable if the region cannot
  // be opened, and protocol_error if create() has not made it.
  static std::shared_ptr<SharedRegion> open(const RegionAddress& address);
  // Memory of this process only, for a rank that shares no memory. Throws resource_exhausted.
  static std::shared_ptr<SharedRegion> unshared(std::size_t bytes);
  // RegionAddress::host of this process.
  static std::string this_host();

  SharedRegion(const SharedRegion&) = delete;
  SharedRegion& operator=(const SharedRegion&) = delete;
  ~SharedRegion();

  // Not for unshared memory. Valid until close_descriptor(), which is called when all ranks have opened the
  // region.
  RegionAddress address() const;
  void close_descriptor() { memory_.reset(); }

  std::byte* base() const { return base_; }     // a new region contains the token, followed by zeros
  std::size_t bytes() const { return bytes_; }  // as given to create() or unshared()
  // Allocates the memory for this part of the region now. Throws resource_exhausted if the host has no memory
  // left; without this call, a later access would then cause SIGBUS.
  void provide(std::size_t begin, std::size_t bytes) const;

 private:
  SharedRegion(rpc::Descriptor memory, std::size_t bytes);  // maps; without a descriptor, unshared memory

  rpc::Descriptor memory_;
  std::byte* base_ = nullptr;
  std::size_t bytes_;
};

}  // namespace weft::collectives
