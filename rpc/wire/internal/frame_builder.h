// FrameBuilder: Cap'n Proto's message builder with its first segment in the frame's own memory, after the
// space for the prefix and the segment table. A message of one segment is sealed without a copy. Nearly all
// messages have one segment.
//
// Only for sources within weft.
#pragma once

#include <weft/rpc/core/buffer.h>
#include <weft/rpc/wire/frame.h>

#include <capnp/message.h>
#include <kj/array.h>

#include <vector>

namespace weft::rpc {

class FrameBuilder final : public capnp::MessageBuilder {
 public:
  FrameBuilder();
  ~FrameBuilder() noexcept override;

  kj::ArrayPtr<capnp::word> allocateSegment(unsigned least_words) override;

  // Returns the frame's memory: space for the prefix, then the header in Cap'n Proto's stream framing. Call
  // once.
  Buffer seal();

 private:
  static constexpr std::size_t table_bytes = 8;  // of one segment
  static constexpr std::size_t first_words = 56;

  Buffer frame_;
  bool first_given_ = false;
  std::size_t next_words_ = 4 * first_words;
  std::vector<kj::Array<capnp::word>> more_;
};

}  // namespace weft::rpc
