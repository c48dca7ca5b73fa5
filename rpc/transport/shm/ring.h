// RingWriter, RingReader: bytes in one direction through a ShmSegment, from one process to another.
//
// Each side keeps its own position to itself, tells it in the control page, and believes the other's only
// within the capacity: whatever the other side writes there, or into the data, at worst ends the ring with
// std::errc::protocol_error. Who has nothing to do asks to be woken by fall_asleep(); the other side then
// rings its Doorbell once, and else makes no system call. Thread-safety: each end is for one thread.
#pragma once

#include <weft/rpc/core/export.h>
#include <weft/rpc/transport/shm/segment.h>

#include <atomic>
#include <cstdint>
#include <span>
#include <system_error>

namespace weft::rpc {

// Wakes the process at the other end.
class WEFT_EXPORT Doorbell {
 public:
  virtual ~Doorbell() = default;
  virtual void ring() = 0;
};

// The control page, each part on cache lines of its own (two, since processors fetch pairs). Positions count
// bytes since the beginning and never wrap; a byte lies at its position modulo the capacity.
//
// No wake-up is lost: who falls asleep raises its flag and then looks at the other's position once more; who
// moves a position then looks at the other's flag. All four accesses are sequentially consistent, so they
// have one order, in which at least one of the two looks comes last and sees what the other did.
struct RingControl {
  struct alignas(128) {
    std::atomic<std::uint64_t> position{0};  // behind the last byte written
    std::atomic<std::uint32_t> ended{0};     // 1: nothing comes after it
  } writer;
  struct alignas(128) {
    std::atomic<std::uint64_t> position{0};      // behind the last byte read
    std::atomic<std::uint64_t> acknowledged{0};  // of BulkAccess
  } reader;
  // Apart from the positions, since they hardly change while both sides are awake.
  struct alignas(128) {
    std::atomic<std::uint32_t> writer_sleeps{0};  // until there is room
    std::atomic<std::uint32_t> writer_awaits_acknowledgement{0};
  } asked_of_reader;
  struct alignas(128) {
    std::atomic<std::uint32_t> reader_sleeps{0};
  } asked_of_writer;
};

class WEFT_EXPORT RingWriter {
 public:
  // Both outlive the writer.
  RingWriter(const ShmSegment& segment, Doorbell& bell);

  // As ByteStream::write(): would_block where there is no room. Large pieces are told of as they go, so that
  // the reader copies one part while this side copies the next.
  std::size_t write(std::span<const std::span<const std::byte>> from, std::error_code& error);
  void end();             // the reader comes to an end after what was written
  bool writable() const;  // half of it is free (to be woken for less does not pay), or it is broken
  bool fall_asleep();     // false: it is writable
  void wake_up();

  std::uint64_t acknowledged() const;
  bool await_acknowledgement(std::uint64_t but);  // false: acknowledged() is another number

 private:
  void tell();  // the reader of what has been written
  bool look();  // at the reader's position; false: it is broken

  RingControl& control_;
  std::byte* const data_;
  const std::size_t capacity_;
  Doorbell& bell_;
  std::uint64_t position_ = 0;
  std::uint64_t read_ = 0;  // the reader's, when last looked at
  bool broken_ = false;
};

class WEFT_EXPORT RingReader {
 public:
  RingReader(const ShmSegment& segment, Doorbell& bell);

  // As ByteStream::read(): would_block where there is nothing, eof after the end.
  std::size_t read(std::span<const std::span<std::byte>> into, std::error_code& error);
  bool readable() const;  // or at its end, or broken
  bool fall_asleep();     // false: it is readable
  void wake_up();
  void acknowledge();
  // The writer is gone: what it wrote until now is all, and if it did not say so by end(), what follows is
  // connection_reset.
  void abandon();

 private:
  void tell();
  bool look();

  RingControl& control_;
  const std::byte* const data_;
  const std::size_t capacity_;
  Doorbell& bell_;
  std::uint64_t position_ = 0;
  std::uint64_t written_ = 0;  // the writer's, when last looked at
  std::uint64_t acknowledged_ = 0;
  bool abandoned_ = false;
  bool ended_ = false;  // of an abandoned one: in order
  bool broken_ = false;
};

}  // namespace weft::rpc
