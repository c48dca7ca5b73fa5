// SharedRegion: memory of one rank that all ranks of its host map.
//
// Sealed (sealed_memory.h) and mostly untouched: its size is of addresses, what nobody has written costs
// nothing. Another process of the same user opens it through /proc, by what its maker tells; a token at its
// beginning says that it is the one meant. Unmapped with its owner; the others' mappings stay. Thread-safety:
// a value; the bytes are those of all ranks at any time.
#pragma once

#include <weft/rpc/codec/struct_codec.h>
#include <weft/rpc/transport/shm/descriptor.h>

#include <array>
#include <memory>

namespace weft::collectives {

// Where another process finds one. `host` differs between kernels, process namespaces and users.
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
  // Throws as make_sealed_memory() does, and resource_exhausted where there are no addresses left.
  static std::shared_ptr<SharedRegion> create(std::size_t bytes);
  // One of another process of this host, or of this process. Throws unavailable where it cannot be had,
  // protocol_error where it is not what create() makes.
  static std::shared_ptr<SharedRegion> open(const RegionAddress& address);
  // Memory of this process alone, for a rank that shares none. Throws resource_exhausted.
  static std::shared_ptr<SharedRegion> unshared(std::size_t bytes);
  static std::string this_host();

  SharedRegion(const SharedRegion&) = delete;
  SharedRegion& operator=(const SharedRegion&) = delete;
  ~SharedRegion();

  // Not of unshared memory. Valid until close_descriptor(), which is for when all have opened it.
  RegionAddress address() const;
  void close_descriptor() { memory_.reset(); }

  std::byte* base() const { return base_; }  // the token, then zeros at first
  std::size_t bytes() const { return bytes_; }
  // Memory behind these addresses, now: resource_exhausted where there is none, rather than SIGBUS later.
  void provide(std::size_t begin, std::size_t bytes) const;

 private:
  SharedRegion(rpc::Descriptor memory, std::size_t bytes);  // maps; without a descriptor, unshared memory

  rpc::Descriptor memory_;
  std::byte* base_ = nullptr;
  std::size_t bytes_;
};

}  // namespace weft::collectives
