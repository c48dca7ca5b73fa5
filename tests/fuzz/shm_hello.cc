// The messages of the handshake that sets up shared memory.
#include <weft/rpc/core/error.h>
#include <weft/rpc/transport/shm/hello.h>
#include <weft/rpc/transport/shm/segment.h>

#include <algorithm>
#include <cstring>

#include "tests/fuzz/target.h"

namespace weft::fuzz {
namespace {

// Fails if an invalid message is accepted, if a message is refused with another error than protocol_error, or
// if a message that was written reads differently.
void run(const std::uint8_t* data, std::size_t size) {
  rpc::ShmHello::Bytes bytes{};
  if (size != 0) std::memcpy(bytes.data(), data, std::min(size, bytes.size()));
  const auto attempt = [](auto decode) {
    try {
      decode();
    } catch (const rpc::Error& error) {
      if (error.kind() != rpc::ErrorKind::protocol_error) fail(std::string("refused with ") + error.what());
    }
  };
  attempt([&] {
    const auto hello = rpc::ShmHello::decode(bytes);
    if (rpc::ShmSegment::capacity_for(hello.capacity) != hello.capacity)
      fail("an invalid capacity is accepted");
    auto again = rpc::ShmHello::decode(hello.encode());
    if (!(again == hello)) fail("does not read as it is written");
  });
  for (const auto kind : {rpc::ShmAnswer::proof, rpc::ShmAnswer::verdict})
    attempt([&] { (void)rpc::ShmAnswer::decode(kind, std::span(bytes).first<rpc::ShmAnswer::size>()); });
}

}  // namespace

Corpus seeds() {
  rpc::ShmHello hello;
  hello.capacity = rpc::ShmSegment::capacity_for(1);
  const auto plain = hello.encode();
  hello.bulk = true;
  hello.bulk_begin = 64U << 10;
  hello.bulk_end = 4U << 20;
  hello.nonce.fill(std::byte{7});
  const auto bulk = hello.encode();
  return {{"plain", input({}, plain)},
          {"bulk", input({}, bulk)},
          {"proof", input({}, rpc::ShmAnswer{rpc::ShmAnswer::proof, 0x1000}.encode())},
          {"verdict", input({}, rpc::ShmAnswer{rpc::ShmAnswer::verdict, 1}.encode())}};
}

}  // namespace weft::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  weft::fuzz::run(data, size);
  return 0;
}
