// FrameReader: takes a byte stream apart into frames; pure, so that it is tested and fuzzed without a socket.
//
// Use: read into targets(), tell it how many bytes came with advance(), take frames with next() until there
// is none. Small frames pass through one staging buffer; a header or attachment that does not fit there is
// read straight into its final storage. Where bulk travels beside the stream (BulkAccess), its place in the
// body holds its address alone: once next() gives nothing and pulls() is not empty, the caller copies each
// and says pulled(). Likewise the large attachments of a frame that came by lanes are no part of the body:
// the caller fills lane_reads() and says lanes_read(). With guard() a large request or reply stops at
// announced(), before anything is allocated for it, until the caller says admit() or skip(). Errors
// (protocol_error, resource_exhausted, permission_denied) end the stream. Thread-safety: none.
#pragma once

#include <weft/rpc/core/memory_pool.h>
#include <weft/rpc/transport/bulk_range.h>
#include <weft/rpc/wire/frame.h>

#include <array>
#include <memory>
#include <optional>

namespace weft::rpc {

class WEFT_EXPORT FrameReader {
 public:
  struct Pull {
    std::uint64_t address;
    std::span<std::byte> into;
  };

  // Attachments in the range `bulk` travel by their address. memory may be null.
  explicit FrameReader(const Limits& limits, std::shared_ptr<MemoryPool> memory = nullptr,
                       BulkRange bulk = {});

  // Where the next bytes belong: a few spans, never empty ones; valid until advance().
  const std::vector<std::span<std::byte>>& targets();
  void advance(std::size_t bytes);
  std::optional<InboundFrame> next();

  // From here on the peer is not trusted: its first frame is a Hello, or a Goodbye or Lane in its place, and
  // until a Hello was received no more than the largest of these is buffered. Before the first bytes.
  void guard() { guarded_ = true; }
  const Prefix* announced() const { return stage_ == Stage::announced ? &frame_.prefix : nullptr; }
  void admit(std::shared_ptr<void> charge);  // the frame keeps the charge
  // The frame is read without being stored: next() gives its prefix, with an empty header. Not of one whose
  // layout only its header tells: with bulk, or on lanes.
  bool can_skip() const { return bulk_ == BulkRange{} && (frame_.prefix.flags & frame_flags::on_lanes) == 0; }
  void skip();

  bool between_frames() const { return stage_ == Stage::prefix && staged() == 0; }

  const std::vector<Pull>& pulls() const { return pulls_; }
  void pulled() { pulls_.clear(); }

  void accept_lanes() { lanes_ = true; }  // until then a frame whose attachments are on lanes is an error
  const std::vector<Buffer>& lane_reads() const { return lane_reads_; }
  void lanes_read() { lane_reads_.clear(); }

 private:
  enum class Stage { prefix, announced, header, body, skipped };
  std::size_t staged() const { return end_ - begin_; }
  void take(std::span<std::byte> into);  // from the staging buffer
  void check_greeting() const;
  void begin_header();
  std::size_t staging_wanted() const;
  void make_room();
  void begin_body();
  void fill_body();
  void end_body();

  const Limits limits_;
  const std::shared_ptr<MemoryPool> memory_;
  const BulkRange bulk_;
  std::unique_ptr<std::byte[]> staging_;  // pages that nothing came to stay untouched
  std::size_t staging_size_ = 0;
  std::size_t begin_ = 0, end_ = 0;  // what of the staging buffer holds unread bytes

  Stage stage_ = Stage::prefix;
  bool guarded_ = false, greeted_ = false;  // a Hello was received
  std::uint64_t to_skip_ = 0;               // bytes of a skipped frame that are still to come
  std::array<std::byte, Prefix::size> prefix_bytes_{};
  InboundFrame frame_;
  std::size_t header_filled_ = 0;
  // The body as it arrives: attachments and the padding after each, the part that is still to come.
  std::vector<std::span<std::byte>> pieces_;
  std::size_t piece_ = 0;
  std::array<std::byte, Buffer::alignment> padding_{};
  std::vector<std::uint64_t> addresses_;  // of the frame's bulk, as they arrive
  std::vector<Pull> pulls_;
  bool lanes_ = false;
  std::vector<Buffer> lane_reads_;
  std::vector<std::span<std::byte>> targets_;
};

}  // namespace weft::rpc
