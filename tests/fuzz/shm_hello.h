// The messages of the handshake that sets up shared memory.
#pragma once

#include <weft/rpc/core/error.h>
#include <weft/rpc/transport/shm/hello.h>
#include <weft/rpc/transport/shm/segment.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace weft::fuzz {

// Aborts if an invalid message is accepted, if a message is refused with another error than protocol_error,
// or if a message that was written reads differently.
inline int fuzz_shm_hello(const std::uint8_t* data, std::size_t size) {
  rpc::ShmHello::Bytes bytes{};
  if (size != 0) std::memcpy(bytes.data(), data, std::min(size, bytes.size()));
  const auto attempt = [](auto decode) {
    try {
      decode();
    } catch (const rpc::Error& error) {
      if (error.kind() != rpc::ErrorKind::protocol_error) std::abort();
    }
  };
  attempt([&] {
    const auto hello = rpc::ShmHello::decode(bytes);
    if (rpc::ShmSegment::capacity_for(hello.capacity) != hello.capacity) std::abort();
    auto again = rpc::ShmHello::decode(hello.encode());
    if (!(again == hello)) std::abort();
  });
  attempt([&] { (void)rpc::ShmProof::decode(std::span(bytes).first<rpc::ShmProof::size>()); });
  attempt([&] { (void)rpc::ShmVerdict::decode(std::span(bytes).first<rpc::ShmVerdict::size>()); });
  return 0;
}

}  // namespace weft::fuzz
