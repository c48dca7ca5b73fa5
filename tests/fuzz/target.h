// What every fuzz target FILE.cc defines: what one input does, and inputs to begin from.
//
// A target aborts where the code under test does what it may not do; a sanitizer sees to the rest. It is
// linked with libFuzzer where the tree is built by clang with WEFT_FUZZ, and with driver.cc otherwise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace weft::fuzz {

using Corpus = std::map<std::string, std::vector<std::uint8_t>>;  // by the names of their files

// Small ones, of every shape; the same each time. They stand in corpus/NAME, written by
// `fuzz_NAME --write-seeds=FOLDER`.
Corpus seeds();

// Aborts, and says why.
[[noreturn]] void fail(const std::string& why);

inline std::vector<std::uint8_t> input(std::initializer_list<std::uint8_t> first,
                                       std::span<const std::byte> rest) {
  std::vector<std::uint8_t> bytes(first);
  for (const std::byte byte : rest) bytes.push_back(static_cast<std::uint8_t>(byte));
  return bytes;
}

}  // namespace weft::fuzz
