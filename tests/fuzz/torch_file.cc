// Files of torch.save(): the zip file, and the pickle in it.
//
// The first byte says whether checksums are checked (1), and whether the rest is a whole file, or (2) the
// pickle of a file with two storages of 64 bytes.
#include <weft/parallel/weights/internal/pickle.h>
#include <weft/parallel/weights/internal/zip.h>

#include <cstring>

#include "tests/fuzz/weights_file.h"

namespace weft::fuzz {
namespace {

std::string in_zip(std::string_view pickle) {
  const std::string storage(64, 'x');
  const std::pair<const char*, std::string_view> records[] = {
      {"a/data.pkl", pickle}, {"a/byteorder", "little"}, {"a/data/0", storage}, {"a/data/1", storage}};
  weights::ZipLayout layout;
  std::vector<std::uint64_t> begins;
  for (const auto& [name, bytes] : records) begins.push_back(layout.add(name, bytes.size()));
  std::string file(layout.bytes(), '\0');
  for (std::size_t i = 0; i < std::size(records); ++i)
    std::memcpy(file.data() + begins[i], records[i].second.data(), records[i].second.size());
  layout.complete(reinterpret_cast<std::byte*>(file.data()));
  return file;
}

std::vector<std::uint8_t> seed(std::uint8_t how, std::string_view bytes) {
  return input({how}, std::as_bytes(std::span(bytes)));
}

}  // namespace

Corpus seeds() {
  const weights::PickledTensor floats{{"0", at::kFloat, 16}, at::kFloat, 1, {3, 2}, {1, 3}},
      bytes{{"1", at::kFloat8_e5m2, 64}, at::kFloat8_e5m2, 0, {8, 0}, {1, 1}};
  const std::string state = weights::write_pickle({{"a", floats}, {"b.c", bytes}});
  using namespace std::string_literals;
  const std::string values =
      "\x80\2}q\0(U\1a]q\1(K\1M\2\3J\4\5\6\7\x8a\2\xff\xffG?\xf0\0\0\0\0\0\0e"
      "X\1\0\0\0b(N\x88\x89tU\1c\x8f(K\1K\2\x90U\1dctorch\nSize\nK\1K\2\x86\x85RU\1eccollections\nOrderedDict\n)R}bu."s;
  const std::string protocol4 =
      "\x80\4\x95\x20\0\0\0\0\0\0\0}\x94(\x8c\1a\x94\x8c\5torch\x94\x8c\6"
      "device\x94\x93\x94\x8c\4"
      "cuda\x94K\1\x86\x94R\x94"
      "\x8c\1b"
      "C\2abu."s;
  return {{"state", seed(3, state)},
          {"values", seed(2, values)},
          {"protocol4", seed(2, protocol4)},
          {"whole", seed(1, in_zip(state))},
          {"unchecked", seed(0, in_zip(state))}};
}

}  // namespace weft::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  if ((data[0] & 2) != 0) {
    weft::fuzz::read_weights(weft::fuzz::in_zip(rest), (data[0] & 1) != 0);
  } else {
    weft::fuzz::read_weights(rest, (data[0] & 1) != 0);
  }
  return 0;
}
