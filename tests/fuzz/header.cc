// Frames and all parts that decoders read of them: the segment table, the header, values of every type, the
// places of attachments.
#include "tests/fuzz/frames.h"
#include "tests/support/decoders.h"

namespace weft::fuzz {

Corpus seeds() {
  Corpus corpus;
  int kind_number = 0;
  for (const rpc::FrameKind kind : rpc::probe::all_kinds) {
    ++kind_number;
    int number = 0;
    for (const auto& frame : rpc::probe::samples(kind)) {
      ++number;
      if (frame.size() > 4000) continue;
      corpus["kind" + std::to_string(kind_number) + "_" + std::to_string(number)] =
          input({FrameInput::resealed, 0}, frame);
    }
  }
  // Two frames. The second one arrives in pieces.
  auto two = rpc::probe::hello("someone");
  const auto call = rpc::probe::sealed(rpc::probe::request(std::string("hello")), "probe.echo", 1);
  two.insert(two.end(), call.begin(), call.end());
  corpus["pieces"] = input({0, 7}, two);
  return corpus;
}

}  // namespace weft::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const weft::fuzz::FrameInput input(data, size);
  weft::rpc::probe::Decoders(weft::fuzz::fail).stream(input.stream, input.piece);
  return 0;
}
