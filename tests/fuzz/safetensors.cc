// Files of safetensors: the header, its offsets and shapes.
//
// The first byte says whether the rest is a whole file, or the JSON of a file with 64 bytes of elements, so
// that mutations need not correct the header's length.
#include <cstring>

#include "tests/fuzz/weights_file.h"

namespace weft::fuzz {
namespace {

std::string with_length(std::string_view json) {
  const std::uint64_t length = json.size();
  std::string file(sizeof length, '\0');
  std::memcpy(file.data(), &length, sizeof length);
  return file.append(json);
}

std::vector<std::uint8_t> seed(std::uint8_t how, std::string_view bytes) {
  return input({how}, std::as_bytes(std::span(bytes)));
}

}  // namespace

Corpus seeds() {
  const std::string two =
      R"({"__metadata__":{"format":"pt","b":"a"},"a":{"dtype":"F32","shape":[2,4],"data_offsets":[0,32]},)"
      R"("c":{"dtype":"BF16","shape":[16],"data_offsets":[32,64]}})";
  const std::string small =
      R"({"":{"dtype":"F4","shape":[2,4],"data_offsets":[1,5]},"e":{"dtype":"I64","shape":[0,3],"data_offsets":[5,5]},)"
      R"("s":{"dtype":"BOOL","shape":[],"data_offsets":[0,1]},"u":{"dtype":"F64","shape":[7],"data_offsets":[5,61]},)"
      R"("x":{"dtype":"U8","shape":[3],"data_offsets":[61,64]}})";
  return {{"two", seed(1, two)},
          {"small", seed(1, small)},
          {"whole", seed(0, with_length(two) + std::string(64, 'x'))},
          {"none", seed(0, with_length("{}"))},
          {"long", seed(0, std::string(8, '\x7f') + "{}")}};
}

}  // namespace weft::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  if ((data[0] & 1) != 0) {
    weft::fuzz::read_weights(weft::fuzz::with_length(rest) + std::string(64, 'x'), true);
  } else {
    weft::fuzz::read_weights(rest, true);
  }
  return 0;
}
