// TLS with an attacker on the wire: see tls_fuzz.h.
#include "tests/fuzz/target.h"
#include "tests/fuzz/tls_fuzz.h"

namespace weft::fuzz {

Corpus seeds() {
  Corpus corpus;
  for (std::uint8_t setting = 0; setting < 9; ++setting)
    corpus["honest" + std::to_string(setting)] = {setting};
  // Passes all bytes on, and then attacks once in each way.
  for (std::uint8_t deed = 8; deed < 16; ++deed) {
    std::vector<std::uint8_t> bytes{static_cast<std::uint8_t>(deed % 2 == 0 ? 0 : 4)};
    for (std::uint8_t direction : {0, 1, 0})
      bytes.insert(bytes.end(), {static_cast<std::uint8_t>(0xe0 | direction), 255, 0});
    bytes.insert(bytes.end(), {static_cast<std::uint8_t>(deed << 1), 5, 0x40, 1, 2, 3, 4});
    corpus["deed" + std::to_string(deed)] = std::move(bytes);
  }
  return corpus;
}

}  // namespace weft::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return weft::test::fuzz_tls_handshake(data, size);
}
