// The prefix of 32 bytes of every frame.
#include <weft/rpc/wire/frame.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "tests/fuzz/target.h"
#include "tests/support/probe.h"

namespace weft {

using rpc::Prefix;

int run(std::span<const std::uint8_t> input) {
  std::array<std::byte, Prefix::size> bytes{};
  std::memcpy(bytes.data(), input.data(), std::min(input.size(), bytes.size()));
  const rpc::Limits limits = rpc::probe::small_limits();
  Prefix prefix;
  try {
    prefix = rpc::decode(bytes, limits);
  } catch (const rpc::Error& error) {
    if (error.kind() != rpc::ErrorKind::protocol_error && error.kind() != rpc::ErrorKind::resource_exhausted)
      fuzz::fail(std::string("refused with ") + error.what());
    return 0;
  }
  if (std::uint64_t{prefix.header_words} * 8 > limits.header || prefix.body_bytes > limits.message)
    fuzz::fail("taken, though above the limits");
  std::array<std::byte, Prefix::size> again{};
  rpc::encode(prefix, again);
  if (again != bytes) fuzz::fail("does not read as it is written");
  return 0;
}

fuzz::Corpus fuzz::seeds() {
  Corpus corpus;
  int number = 0;
  for (const rpc::FrameKind kind : rpc::probe::all_kinds)
    corpus["kind" + std::to_string(++number)] =
        input({}, std::span(rpc::probe::samples(kind).front()).first(Prefix::size));
  return corpus;
}

}  // namespace weft

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return size == 0 ? 0 : weft::run({data, size});
}
