// FrameReader: parses a byte stream into frames. It does no I/O, so tests and fuzzers need no socket.
//
// Use: read into targets(), pass the number of bytes to advance(), and call next() until it returns nullopt.
// Small frames pass through one staging buffer. A header or attachment that does not fit into it is read
// directly into its final storage.
//
// Bulk (BulkAccess): the body contains the addresses of the attachments. If next() returns nullopt and
// pulls() is not empty, copy each attachment and call pulled().
//
// With guard(), the reader stops at each large request or reply, before it allocates memory for the frame.
// announced() returns the prefix of the frame, until the caller calls admit() or skip().
//
// Errors (protocol_error, resource_exhausted, permission_denied) end the stream. Thread-safety: none.
#pragma once

#include <weft/rpc/core/memory_pool.h>
#include <weft/rpc/transport/byte_stream.h>
#include <weft/rpc/wire/frame.h>

#include <array>
#include <memory>
#include <optional>

namespace weft::rpc {

class WEFT_EXPORT FrameReader {
 public:
  // One attachment to copy.
  struct Pull {
    std::uint64_t address;      // in the memory of the sender
    std::span<std::byte> into;  // its place in the frame
  };

  // bulk: the sizes of the attachments that are sent by their address. memory: may be null.
  explicit FrameReader(const Limits& limits, std::shared_ptr<MemoryPool> memory = nullptr,
                       BulkRange bulk = {});

  // The spans for the next bytes: a few spans, none of them empty. Valid until advance().
  const std::vector<std::span<std::byte>>& targets();
  // This number of bytes has been read into targets().
  void advance(std::size_t bytes);
  // The next whole frame. nullopt: the reader needs further bytes, or the caller must act first (announced(),
  // pulls()).
  std::optional<InboundFrame> next();

  // After this call the peer is not trusted. Its first frame must be a Hello or Goodbye. Until a Hello has
  // been received, the reader buffers at most the size of the larger of these frames. Call before the
  // first advance().
  void guard() { guarded_ = true; }
  // The prefix of the frame that waits for admit() or skip(); null: none waits.
  const Prefix* announced() const { return stage_ == Stage::announced ? &frame_.prefix : nullptr; }
  void admit(std::shared_ptr<void> charge);  // the frame keeps `charge`
  // skip(): the reader discards the announced frame, and next() returns its prefix with an empty header.
  // can_skip(): false for a frame with bulk, because only the frame's header describes the layout of its
  // body.
  bool can_skip() const { return bulk_ == BulkRange{}; }
  void skip();

  // Whether no byte of a further frame has arrived: only then may the stream end.
  bool between_frames() const { return stage_ == Stage::prefix && staged() == 0; }

  const std::vector<Pull>& pulls() const { return pulls_; }
  void pulled() { pulls_.clear(); }

 private:
  enum class Stage { prefix, announced, header, body, skipped };
  std::size_t staged() const { return end_ - begin_; }
  void take(std::span<std::byte> into);  // takes bytes from the staging buffer
  void check_greeting() const;
  void begin_header();
  std::size_t staging_wanted() const;
  void make_room();
  void begin_body();
  std::span<std::byte> next_piece(std::size_t max);  // of the body: at most `max` bytes, which have arrived

  const Limits limits_;
  const std::shared_ptr<MemoryPool> memory_;
  const BulkRange bulk_;
  std::unique_ptr<std::byte[]> staging_;  // pages that were never written use no memory
  std::size_t staging_size_ = 0;
  std::size_t begin_ = 0, end_ = 0;  // the unread bytes of the staging buffer

  Stage stage_ = Stage::prefix;
  bool guarded_ = false, greeted_ = false;  // greeted_: a Hello was received
  std::uint64_t to_skip_ = 0;               // bytes of a skipped frame that have not arrived
  std::array<std::byte, Prefix::size> prefix_bytes_{};
  InboundFrame frame_;
  std::size_t header_filled_ = 0;
  // The parts of the body that have not arrived: attachments, and the padding after each attachment.
  std::vector<std::span<std::byte>> pieces_;
  std::size_t piece_ = 0;
  std::array<std::byte, Buffer::alignment> padding_{};
  // The addresses of the frame's bulk, in the order of its attachments.
  std::vector<std::uint64_t> addresses_;
  std::vector<Pull> pulls_;
  std::vector<std::span<std::byte>> targets_;
};

}  // namespace weft::rpc
