// The handshake of shared memory: see shm_hello.h.
#include "tests/fuzz/shm_hello.h"

#include "tests/fuzz/target.h"

namespace weft::fuzz {

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
          {"proof", input({}, rpc::ShmProof{.address = 0x1000}.encode())},
          {"verdict", input({}, rpc::ShmVerdict{.readable = true}.encode())}};
}

}  // namespace weft::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return weft::fuzz::fuzz_shm_hello(data, size);
}
