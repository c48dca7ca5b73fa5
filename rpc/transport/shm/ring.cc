// The writer copies into the data region at its position and then publishes the position in the control page;
// the reader does the same in the opposite direction. Each side reads the other's position only if its cached
// copy (other_position_) shows too little room or data. A side without work sets its flag (fall_asleep); the
// other side rings the Doorbell once when it sees the flag. ring.h explains why no wake-up is lost.
#include <weft/rpc/transport/shm/ring.h>

#include <asio/error.hpp>

#include <algorithm>
#include <cstring>

namespace weft::rpc {
namespace {

static_assert(std::atomic<std::uint64_t>::is_always_lock_free &&
              std::atomic<std::uint32_t>::is_always_lock_free);
static_assert(sizeof(RingControl) <= 4096);

// Bytes to copy before the position is published: the copies of the two sides overlap, and the written bytes
// are still in a cache when the other side reads them.
constexpr std::size_t piece = 64U << 10;
// Bytes to copy in one call, so that other work on the loop runs even if the other side is fast.
constexpr std::size_t max_a_call = 4U << 20;

// The page is zero when it is created, which equals the initializers; the other side may have written to it
// since.
RingControl& control_of(const ShmSegment& segment) {
  return *reinterpret_cast<RingControl*>(segment.control());
}

void ring_if_asked(std::atomic<std::uint32_t>& asked, Doorbell& bell) {
  if (asked.load() != 0 && asked.exchange(0) != 0) bell.ring();
}

std::error_code broken() { return std::make_error_code(std::errc::protocol_error); }

}  // namespace

RingEnd::RingEnd(const ShmSegment& segment, Doorbell& bell)
    : control_(control_of(segment)), data_(segment.data()), capacity_(segment.capacity()), bell_(bell) {}

template <class Byte, class Ready, class Copy, class Publish>
std::size_t RingEnd::move(std::span<const std::span<Byte>> spans, Ready ready, Copy copy, Publish publish) {
  std::size_t total = 0;
  std::size_t unpublished = 0;
  for (auto rest : spans) {
    while (!rest.empty() && total < max_a_call) {
      const std::size_t bytes = std::min({rest.size(), ready(rest.size()), piece - unpublished});
      if (bytes == 0) break;
      copy(data_ + (position_ & (capacity_ - 1)), rest.data(), bytes);
      rest = rest.subspan(bytes);
      position_ += bytes;
      total += bytes;
      unpublished += bytes;
      if (unpublished == piece) {
        publish();
        unpublished = 0;
      }
    }
    if (!rest.empty()) break;
  }
  if (unpublished != 0) publish();
  return total;
}

// --- The writer ---

std::size_t RingWriter::write(std::span<const std::span<const std::byte>> from, std::error_code& error) {
  const auto room = [this](std::size_t wanted) -> std::size_t {
    if (capacity_ - (position_ - other_position_) < std::min(wanted, piece) && !refresh_position()) return 0;
    return capacity_ - (position_ - other_position_);
  };
  const auto copy = [](std::byte* ring, const std::byte* span, std::size_t n) { std::memcpy(ring, span, n); };
  const std::size_t total = move(from, room, copy, [this] { publish_position(); });
  if (total == 0) error = broken_ ? broken() : asio::error::would_block;
  return total;
}

void RingWriter::publish_position() {
  control_.writer.position.store(position_);
  ring_if_asked(control_.asked_of_writer.reader_sleeps, bell_);
}

void RingWriter::end() {
  control_.writer.ended.store(1);
  ring_if_asked(control_.asked_of_writer.reader_sleeps, bell_);
}

bool RingWriter::refresh_position() {
  const std::uint64_t read = control_.reader.position.load();
  broken_ = broken_ || position_ - read > capacity_;
  if (!broken_) other_position_ = read;
  return !broken_;
}

bool RingWriter::writable() const {
  const std::uint64_t unread = position_ - control_.reader.position.load();
  return unread <= capacity_ / 2 || unread > capacity_ || broken_;
}

bool RingWriter::fall_asleep() {
  control_.asked_of_reader.writer_sleeps.store(1);
  if (!writable()) return true;
  wake_up();
  return false;
}

void RingWriter::wake_up() { control_.asked_of_reader.writer_sleeps.store(0, std::memory_order_relaxed); }

std::uint64_t RingWriter::acknowledged() const { return control_.reader.acknowledged.load(); }

bool RingWriter::await_acknowledgement(std::uint64_t but) {
  auto& asked = control_.asked_of_reader.writer_awaits_acknowledgement;
  asked.store(1);
  if (acknowledged() == but) return true;
  asked.store(0, std::memory_order_relaxed);
  return false;
}

// --- The reader ---

std::size_t RingReader::read(std::span<const std::span<std::byte>> into, std::error_code& error) {
  // Read before the positions, so that everything written before the end is seen.
  const bool ended = abandoned_ ? ended_ : control_.writer.ended.load() != 0;
  const auto unread = [this](std::size_t) -> std::size_t {
    if (other_position_ == position_) refresh_position();
    return other_position_ - position_;
  };
  const auto copy = [](const std::byte* ring, std::byte* span, std::size_t n) { std::memcpy(span, ring, n); };
  const std::size_t total = move(into, unread, copy, [this] { publish_position(); });
  if (total != 0) return total;
  if (broken_) {
    error = broken();
  } else if (ended) {
    error = asio::error::eof;
  } else {
    error = abandoned_ ? asio::error::connection_reset : asio::error::would_block;
  }
  return 0;
}

void RingReader::publish_position() {
  control_.reader.position.store(position_);
  // The writer asks to be woken when half of the ring is free. After it has asked, its position does not
  // change, and a reader that reads everything reaches that point.
  auto& asked = control_.asked_of_reader.writer_sleeps;
  if (asked.load() != 0 && control_.writer.position.load() - position_ <= capacity_ / 2)
    ring_if_asked(asked, bell_);
}

bool RingReader::refresh_position() {
  if (abandoned_ || broken_) return !broken_;
  const std::uint64_t written = control_.writer.position.load();
  broken_ = written - position_ > capacity_;
  if (!broken_) other_position_ = written;
  return !broken_;
}

bool RingReader::readable() const {
  return abandoned_ || broken_ || other_position_ != position_ ||
         control_.writer.position.load() != position_ || control_.writer.ended.load() != 0;
}

bool RingReader::fall_asleep() {
  control_.asked_of_writer.reader_sleeps.store(1);
  if (!readable()) return true;
  wake_up();
  return false;
}

void RingReader::wake_up() { control_.asked_of_writer.reader_sleeps.store(0, std::memory_order_relaxed); }

void RingReader::acknowledge() {
  control_.reader.acknowledged.store(++acknowledged_);
  ring_if_asked(control_.asked_of_reader.writer_awaits_acknowledgement, bell_);
}

void RingReader::abandon() {
  ended_ = control_.writer.ended.load() != 0;
  refresh_position();
  abandoned_ = true;
}

}  // namespace weft::rpc
