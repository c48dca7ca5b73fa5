#include <weft/rpc/transport/shm/ring.h>

#include <asio/error.hpp>

#include <algorithm>
#include <cstring>

namespace weft::rpc {
namespace {

static_assert(std::atomic<std::uint64_t>::is_always_lock_free &&
              std::atomic<std::uint32_t>::is_always_lock_free);
static_assert(sizeof(RingControl) <= 4096);

// So much is copied before the other side is told: the two copies overlap, and what the one has written is
// still in a cache when the other reads it.
constexpr std::size_t piece = 64U << 10;
// And so much a call: then others of the loop have a look in, however fast the other side is.
constexpr std::size_t max_a_call = 4U << 20;

// The page was zeros when it was made, which is what the initialisers say; the other side may have written
// since.
RingControl& control_of(const ShmSegment& segment) {
  return *reinterpret_cast<RingControl*>(segment.control());
}

void ring_if_asked(std::atomic<std::uint32_t>& asked, Doorbell& bell) {
  if (asked.load() != 0 && asked.exchange(0) != 0) bell.ring();
}

std::error_code broken() { return std::make_error_code(std::errc::protocol_error); }

}  // namespace

// --- The writer ---

RingWriter::RingWriter(const ShmSegment& segment, Doorbell& bell)
    : control_(control_of(segment)), data_(segment.data()), capacity_(segment.capacity()), bell_(bell) {}

std::size_t RingWriter::write(std::span<const std::span<const std::byte>> from, std::error_code& error) {
  std::size_t total = 0;
  std::size_t untold = 0;
  for (auto rest : from) {
    while (!rest.empty() && total < max_a_call) {
      std::size_t room = capacity_ - (position_ - read_);
      if (room < std::min(rest.size(), piece)) {
        if (!look()) break;
        room = capacity_ - (position_ - read_);
        if (room == 0) break;
      }
      const std::size_t bytes = std::min({rest.size(), room, piece - untold});
      std::memcpy(data_ + (position_ & (capacity_ - 1)), rest.data(), bytes);
      rest = rest.subspan(bytes);
      position_ += bytes;
      total += bytes;
      untold += bytes;
      if (untold == piece) {
        tell();
        untold = 0;
      }
    }
    if (!rest.empty()) break;
  }
  if (untold != 0) tell();
  if (total == 0) error = broken_ ? broken() : asio::error::would_block;
  return total;
}

void RingWriter::tell() {
  control_.writer.position.store(position_);
  ring_if_asked(control_.asked_of_writer.reader_sleeps, bell_);
}

void RingWriter::end() {
  control_.writer.ended.store(1);
  ring_if_asked(control_.asked_of_writer.reader_sleeps, bell_);
}

bool RingWriter::look() {
  const std::uint64_t read = control_.reader.position.load();
  broken_ = broken_ || position_ - read > capacity_;
  if (!broken_) read_ = read;
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

RingReader::RingReader(const ShmSegment& segment, Doorbell& bell)
    : control_(control_of(segment)), data_(segment.data()), capacity_(segment.capacity()), bell_(bell) {}

std::size_t RingReader::read(std::span<const std::span<std::byte>> into, std::error_code& error) {
  std::size_t total = 0;
  std::size_t untold = 0;
  // Before the positions are looked at: what was written before the end is seen then.
  const bool ended = abandoned_ ? ended_ : control_.writer.ended.load() != 0;
  for (auto rest : into) {
    while (!rest.empty() && total < max_a_call) {
      if (written_ == position_ && (!look() || written_ == position_)) break;
      const std::size_t bytes = std::min({rest.size(), std::size_t{written_ - position_}, piece - untold});
      std::memcpy(rest.data(), data_ + (position_ & (capacity_ - 1)), bytes);
      rest = rest.subspan(bytes);
      position_ += bytes;
      total += bytes;
      untold += bytes;
      if (untold == piece) {
        tell();
        untold = 0;
      }
    }
    if (!rest.empty()) break;
  }
  if (untold != 0) tell();
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

void RingReader::tell() {
  control_.reader.position.store(position_);
  // The writer asks to be woken when half is free. Once it has asked its position stands, and whoever reads
  // until there is nothing comes to that point.
  auto& asked = control_.asked_of_reader.writer_sleeps;
  if (asked.load() != 0 && control_.writer.position.load() - position_ <= capacity_ / 2)
    ring_if_asked(asked, bell_);
}

bool RingReader::look() {
  if (abandoned_ || broken_) return !broken_;
  const std::uint64_t written = control_.writer.position.load();
  broken_ = written - position_ > capacity_;
  if (!broken_) written_ = written;
  return !broken_;
}

bool RingReader::readable() const {
  return abandoned_ || broken_ || written_ != position_ || control_.writer.position.load() != position_ ||
         control_.writer.ended.load() != 0;
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
  look();
  abandoned_ = true;
}

}  // namespace weft::rpc
