// A ring whose other side writes any values into the shared page: see shm_ring.h.
#include "tests/fuzz/shm_ring.h"

#include "tests/fuzz/target.h"

namespace weft::fuzz {

Corpus seeds() {
  Corpus corpus;
  // Bytes are written and read. Then each operation is done once, and bytes are written and read again.
  const std::vector<std::uint8_t> both{15, 128, 100, 0, 50, 0, 14, 128, 100, 0, 50, 0};
  corpus["honest"] = both;
  for (std::uint8_t deed = 0; deed < 14; ++deed) {
    auto bytes = both;
    bytes.insert(bytes.end(), {deed, 129});
    if (deed == 0 || deed == 3 || deed == 9) bytes.insert(bytes.end(), {0, 0, 0, 0, 1, 0, 0, 0});
    if (deed == 1 || deed == 4) bytes.insert(bytes.end(), {0, 16, 0});
    bytes.insert(bytes.end(), both.begin(), both.end());
    corpus["deed" + std::to_string(deed)] = std::move(bytes);
  }
  return corpus;
}

}  // namespace weft::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return weft::fuzz::fuzz_ring(data, size);
}
