#include <weft/rpc/transport/frame_reader.h>

#include <weft/rpc/transport/admission.h>

#include <algorithm>
#include <cstring>

namespace weft::rpc {
namespace {

constexpr std::size_t staging_size = 64 * 1024;
constexpr std::size_t greeting_size = Prefix::size + Prefix::max_control_header;
constexpr std::size_t max_targets = 64;  // the maximum of one readv in Asio

}  // namespace

FrameReader::FrameReader(const Limits& limits, std::shared_ptr<MemoryPool> memory, BulkRange bulk)
    : limits_(limits), memory_(std::move(memory)), bulk_(bulk) {}

const std::vector<std::span<std::byte>>& FrameReader::targets() {
  targets_.clear();
  if (stage_ == Stage::header && header_filled_ != 0) {
    targets_.push_back(frame_.header.bytes().subspan(header_filled_));
    return targets_;
  }
  if (stage_ == Stage::body) {
    for (std::size_t i = piece_; i < pieces_.size() && targets_.size() + 1 < max_targets; ++i)
      targets_.push_back(pieces_[i]);
    // This read may also take bytes after the body, but not if further pieces of the body do not fit into it.
    if (targets_.size() + 1 == max_targets) return targets_;
  }
  make_room();
  targets_.emplace_back(staging_.get() + end_, staging_size_ - end_);
  return targets_;
}

std::size_t FrameReader::staging_wanted() const {
  return guarded_ && !greeted_ ? greeting_size : staging_size;
}

// Moves the staged bytes to the beginning of the buffer; replaces the buffer by a larger one after the Hello.
void FrameReader::make_room() {
  const std::size_t left = staged();
  if (staging_size_ < staging_wanted()) {
    auto larger = std::make_unique_for_overwrite<std::byte[]>(staging_wanted());
    if (left != 0) std::memcpy(larger.get(), staging_.get() + begin_, left);
    staging_ = std::move(larger);
    staging_size_ = staging_wanted();
  } else if (left != 0 && begin_ != 0) {
    std::memmove(staging_.get(), staging_.get() + begin_, left);
  }
  begin_ = 0;
  end_ = left;
}

void FrameReader::advance(std::size_t bytes) {
  if (stage_ == Stage::header && header_filled_ != 0) {
    header_filled_ += bytes;
    return;
  }
  if (stage_ == Stage::body) {
    while (bytes != 0 && piece_ < pieces_.size()) bytes -= next_piece(bytes).size();
  }
  end_ += bytes;
}

std::optional<InboundFrame> FrameReader::next() {
  if (stage_ == Stage::prefix) {
    if (guarded_ && !greeted_ && begins_like_tls({staging_.get() + begin_, staged()}))
      throw Error(
          ErrorKind::permission_denied,
          "the peer speaks TLS, and this agent has no credentials for it (AgentOptions::credentials)");
    if (staged() < Prefix::size) return std::nullopt;
    take(prefix_bytes_);
    frame_.header = {};  // both were moved away with the previous frame
    frame_.attachments.clear();
    frame_.prefix = decode(prefix_bytes_, limits_);
    if (guarded_ && !greeted_) check_greeting();
    if (guarded_ && frame_.prefix.carries_call() && frame_.prefix.message_bytes() >= Admission::large) {
      stage_ = Stage::announced;
    } else {
      begin_header();
    }
  }
  if (stage_ == Stage::announced) return std::nullopt;
  if (stage_ == Stage::skipped) {
    const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(staged(), to_skip_));
    begin_ += n;
    to_skip_ -= n;
    if (to_skip_ != 0) return std::nullopt;
    stage_ = Stage::prefix;
    return std::move(frame_);
  }
  if (stage_ == Stage::header) {
    const std::size_t missing = frame_.header.size() - header_filled_;
    if (staged() < missing && frame_.header.size() <= staging_size / 2)
      return std::nullopt;  // the rest will fit into the staging buffer: wait for all of it
    const std::size_t n = std::min(staged(), missing);
    take(frame_.header.bytes().subspan(header_filled_, n));
    header_filled_ += n;
    if (header_filled_ != frame_.header.size()) return std::nullopt;
    begin_body();
  }
  while (piece_ < pieces_.size() && staged() != 0) take(next_piece(staged()));
  if (piece_ != pieces_.size()) return std::nullopt;
  if (!addresses_.empty()) {
    auto address = addresses_.begin();
    for (const Buffer& attachment : frame_.attachments)
      if (bulk_.contains(attachment.size())) pulls_.push_back({*address++, attachment.bytes()});
    addresses_.clear();
  }
  if (!pulls_.empty()) return std::nullopt;
  stage_ = Stage::prefix;
  greeted_ = greeted_ || frame_.prefix.kind == FrameKind::hello;
  return std::move(frame_);
}

void FrameReader::check_greeting() const {
  const FrameKind kind = frame_.prefix.kind;
  if (kind != FrameKind::hello && kind != FrameKind::goodbye)
    throw Error(ErrorKind::protocol_error, "bad frame: expected a Hello, found a frame of kind " +
                                               std::to_string(static_cast<int>(kind)));
}

void FrameReader::begin_header() {
  frame_.header = Buffer::allocate(std::size_t{frame_.prefix.header_words} * 8);
  header_filled_ = 0;
  stage_ = Stage::header;
}

void FrameReader::admit(std::shared_ptr<void> charge) {
  frame_.charge = std::move(charge);
  begin_header();
}

void FrameReader::skip() {
  to_skip_ = frame_.prefix.message_bytes();
  stage_ = Stage::skipped;
}

void FrameReader::take(std::span<std::byte> into) {
  if (into.empty()) return;
  std::memcpy(into.data(), staging_.get() + begin_, into.size());
  begin_ += into.size();
}

void FrameReader::begin_body() {
  const auto sizes = check_header(frame_.prefix, prefix_bytes_, frame_.header.bytes(), limits_);
  pieces_.clear();
  piece_ = 0;
  frame_.attachments.reserve(sizes.size());
  for (const std::uint64_t size : sizes) {
    const Buffer& attachment = frame_.attachments.emplace_back(memory_ != nullptr ? memory_->allocate(size)
                                                                                  : Buffer::allocate(size));
    if (bulk_.contains(size)) {
      addresses_.push_back(0);
      continue;
    }
    if (size != 0) pieces_.push_back(attachment.bytes());
    if (const std::size_t gap = padded(size) - size; gap != 0)
      pieces_.push_back(std::span(padding_).first(gap));
  }
  // After the rest of the body, so that the addresses are one piece.
  if (!addresses_.empty()) pieces_.push_back(std::as_writable_bytes(std::span(addresses_)));
  stage_ = Stage::body;
}

std::span<std::byte> FrameReader::next_piece(std::size_t max) {
  std::span<std::byte>& piece = pieces_[piece_];
  const auto next = piece.first(std::min(max, piece.size()));
  piece = piece.subspan(next.size());
  if (piece.empty()) ++piece_;
  return next;
}

}  // namespace weft::rpc
