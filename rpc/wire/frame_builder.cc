#include <weft/rpc/wire/internal/frame_builder.h>

#include <capnp/serialize.h>
#include <kj/io.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace weft::rpc {

FrameBuilder::FrameBuilder()
    : frame_(Buffer::allocate(Prefix::size + table_bytes + first_words * sizeof(capnp::word))) {
  std::memset(frame_.data() + Prefix::size, 0, frame_.size() - Prefix::size);  // Cap'n Proto requires zeros
}
FrameBuilder::~FrameBuilder() noexcept = default;

kj::ArrayPtr<capnp::word> FrameBuilder::allocateSegment(unsigned least_words) {
  if (!std::exchange(first_given_, true) && least_words <= first_words)
    return {reinterpret_cast<capnp::word*>(frame_.data() + Prefix::size + table_bytes), first_words};
  const std::size_t words = std::max<std::size_t>(least_words, next_words_);
  next_words_ = 2 * words;
  auto segment = kj::heapArray<capnp::word>(words);
  std::memset(segment.begin(), 0, segment.asBytes().size());
  more_.push_back(kj::mv(segment));
  return more_.back();
}

Buffer FrameBuilder::seal() {
  const auto segments = getSegmentsForOutput();
  if (segments.size() == 1 && more_.empty()) {
    const std::uint32_t table[2] = {0, static_cast<std::uint32_t>(segments[0].size())};
    static_assert(sizeof table == table_bytes);
    std::memcpy(frame_.data() + Prefix::size, table, sizeof table);
    return Buffer(frame_.owner(), frame_.data(), Prefix::size + table_bytes + segments[0].asBytes().size());
  }
  Buffer whole =
      Buffer::allocate(Prefix::size + capnp::computeSerializedSizeInWords(segments) * sizeof(capnp::word));
  const std::span<std::byte> header = whole.bytes().subspan(Prefix::size);
  kj::ArrayOutputStream stream({reinterpret_cast<kj::byte*>(header.data()), header.size()});
  capnp::writeMessage(stream, segments);
  return whole;
}

}  // namespace weft::rpc
