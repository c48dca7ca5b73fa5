// The functions that every fuzz target FILE.cc defines: the run of one input, and seed inputs.
//
// A target aborts if the code under test violates its contract; sanitizers find other errors. The
// target is linked with libFuzzer if the tree is built by clang with WEFT_FUZZ, and with driver.cc otherwise.
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

// Small seeds of every shape, the same in each run. They are in corpus/NAME, written by `fuzz_NAME
// --write-seeds=FOLDER`.
Corpus seeds();

// Prints the reason and aborts.
[[noreturn]] void fail(const std::string& why);

inline std::vector<std::uint8_t> input(std::initializer_list<std::uint8_t> first,
                                       std::span<const std::byte> rest) {
  std::vector<std::uint8_t> bytes(first);
  for (const std::byte byte : rest) bytes.push_back(static_cast<std::uint8_t>(byte));
  return bytes;
}

}  // namespace weft::fuzz
