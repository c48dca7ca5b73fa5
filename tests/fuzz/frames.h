// Streams of frames as fuzz inputs.
#pragma once

#include <weft/rpc/wire/frame.h>

#include <cstring>
#include <span>
#include <vector>

#include "tests/fuzz/target.h"

namespace weft::fuzz {

// Two bytes of options, then a stream of frames. Without `resealed` few mutations pass the checksum.
struct FrameInput {
  FrameInput(const std::uint8_t* data, std::size_t size) {
    how = size > 0 ? data[0] : 0;
    piece = size > 1 && data[1] != 0 ? data[1] : SIZE_MAX;
    if (size > 2) {
      stream.resize(size - 2);
      std::memcpy(stream.data(), data + 2, size - 2);
    }
    if (how & resealed) reseal();
  }

  static constexpr std::uint8_t resealed = 1;

  std::uint8_t how;
  std::size_t piece;  // number of bytes that arrive together
  std::vector<std::byte> stream;

 private:
  // Corrects the checksum of each frame, as far as the lengths lead from frame to frame.
  void reseal() {
    using rpc::Prefix;
    for (std::span<std::byte> rest(stream); rest.size() > Prefix::size;) {
      std::uint32_t words = 0;
      std::uint64_t body = 0;
      std::memcpy(&words, rest.data() + 8, sizeof words);
      std::memcpy(&body, rest.data() + 24, sizeof body);
      const auto header = rest.subspan(Prefix::size);
      if (std::size_t{words} * 8 > header.size()) return;
      const std::uint32_t checksum =
          rpc::frame_checksum(rest.first<Prefix::size>(), header.first(std::size_t{words} * 8));
      std::memcpy(rest.data() + 12, &checksum, sizeof checksum);
      rest = header.subspan(std::size_t{words} * 8);
      if (body > rest.size()) return;
      rest = rest.subspan(static_cast<std::size_t>(body));
    }
  }
};

}  // namespace weft::fuzz
