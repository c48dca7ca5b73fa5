// Mutated frames (see mutated_frames_test.cc) as input of the decoders alone. The decoders read every byte,
// or refuse the frame.
#include <gtest/gtest.h>

#include "tests/support/decoders.h"

namespace weft::rpc::mutated_decoders_test {
namespace {

using namespace probe;

constexpr std::uint64_t decoder_frames = 12'000;

TEST(MutatedDecoders, ReadOrRefuseMutatedFrames) {
  Running running;
  Decoders decoders([](const std::string& what) { ADD_FAILURE() << what; });
  const auto [first, last] = numbers(decoder_frames);
  for (std::uint64_t seed = first; seed < last; ++seed) {
    SCOPED_TRACE("replay with WEFT_SEED=" + std::to_string(seed));
    Running::now(seed, seed);
    FrameMutator random(seed, small_limits());
    // Frames with values are more frequent than the others.
    const FrameKind values = random.one_in(2) ? FrameKind::request : FrameKind::reply;
    const std::size_t piece = random.one_in(4) ? 1 + random.below(100) : SIZE_MAX;
    decoders.stream(stream_of(random, random.one_in(3) ? random.pick(all_kinds) : values), piece);
    if (HasFailure()) return;  // the first is enough
  }
  std::printf("%zu frames got through, %zu streams were refused; %zu values rendered, %zu decoded\n",
              decoders.frames, decoders.refused, decoders.rendered, decoders.decoded);
  if (last - first == decoder_frames) {
    EXPECT_GT(decoders.frames, decoder_frames / 4);
    EXPECT_GT(decoders.refused, decoder_frames / 4);
    EXPECT_GT(decoders.decoded, decoder_frames / 4);
  }
}

}  // namespace
}  // namespace weft::rpc::mutated_decoders_test
