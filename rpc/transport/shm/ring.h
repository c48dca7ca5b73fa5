// RingWriter, RingReader: one direction of a byte stream through a ShmSegment, from one process to another.
//
// Each side keeps its position in private memory and publishes it in the control page. It accepts the other's
// position only within the capacity: whatever the other side writes to the page or the data, the worst result
// is that the ring fails with std::errc::protocol_error. A side without work requests a wake-up with
// fall_asleep(). The other side then rings its Doorbell once. Without such a request, neither side makes a
// system call. Thread-safety: each end is used by one thread.
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
  // Does not block. Has no effect if the other process has ended.
  virtual void ring() = 0;
};

// The control page. Each part has separate cache lines (two, since processors fetch pairs). Positions count
// bytes since the beginning and never wrap; the byte at a position is stored at the position modulo the
// capacity.
//
// No wake-up is lost. A side that falls asleep sets its flag and then reads the other's position once more. A
// side that advances its position then reads the other's flag. All four accesses are sequentially consistent,
// so they have one total order. The last access in this order is a read, and it sees the other side's write.
struct RingControl {
  // Written by the writer.
  struct alignas(128) {
    std::atomic<std::uint64_t> position{0};  // the position after the last byte written
    std::atomic<std::uint32_t> ended{0};     // 1: no bytes follow that position
  } writer;
  // Written by the reader.
  struct alignas(128) {
    std::atomic<std::uint64_t> position{0};      // the position after the last byte read
    std::atomic<std::uint64_t> acknowledged{0};  // BulkAccess::acknowledged()
  } reader;
  // Separate from the positions, because they rarely change while both sides are awake.
  struct alignas(128) {
    std::atomic<std::uint32_t> writer_sleeps{0};                  // 1: the writer sleeps until there is room
    std::atomic<std::uint32_t> writer_awaits_acknowledgement{0};  // 1: until `acknowledged` changes
  } asked_of_reader;
  struct alignas(128) {
    std::atomic<std::uint32_t> reader_sleeps{0};  // 1: the reader sleeps until there are bytes, or the end
  } asked_of_writer;
};

// What both ends have.
class WEFT_EXPORT RingEnd {
 protected:
  // The arguments must outlive this end.
  RingEnd(const ShmSegment& segment, Doorbell& bell);

  // Copies between the spans and the ring, and publishes the position after each piece. ready: (bytes wanted)
  // -> the bytes that can be moved now. copy: as std::memcpy, between the ring and a span.
  template <class Byte, class Ready, class Copy, class Publish>
  std::size_t move(std::span<const std::span<Byte>> spans, Ready ready, Copy copy, Publish publish);

  RingControl& control_;              // in shared memory
  std::byte* const data_;             // the ring's bytes, in shared memory
  const std::size_t capacity_;        // bytes
  Doorbell& bell_;                    // wakes the other end
  std::uint64_t position_ = 0;        // of this end
  std::uint64_t other_position_ = 0;  // of the other end, when last read
  bool broken_ = false;               // the other end's position was invalid
};

class WEFT_EXPORT RingWriter : private RingEnd {
 public:
  RingWriter(const ShmSegment& segment, Doorbell& bell) : RingEnd(segment, bell) {}

  // Like ByteStream::write(): would_block if there is no room. The position is published after each piece of
  // a large write, so that the reader copies one piece while this side copies the next.
  std::size_t write(std::span<const std::span<const std::byte>> from, std::error_code& error);

  void end();  // the reader reads eof after the bytes that were written
  // Whether at least half of the ring is free (less is not worth a wake-up), or the ring is broken.
  bool writable() const;
  bool fall_asleep();  // false: writable() is true
  void wake_up();      // withdraws the request of fall_asleep()

  std::uint64_t acknowledged() const;             // the reader's number (BulkAccess)
  bool await_acknowledgement(std::uint64_t but);  // false: acknowledged() differs from `but`

 private:
  void publish_position();
  bool refresh_position();  // reads the reader's position; false: it is invalid
};

class WEFT_EXPORT RingReader : private RingEnd {
 public:
  RingReader(const ShmSegment& segment, Doorbell& bell) : RingEnd(segment, bell) {}

  // Like ByteStream::read(): would_block if there are no bytes, eof after the end.
  std::size_t read(std::span<const std::span<std::byte>> into, std::error_code& error);

  bool readable() const;  // whether there are bytes, the end was reached, or the ring is broken
  bool fall_asleep();     // false: readable() is true
  void wake_up();         // withdraws the request of fall_asleep()
  void acknowledge();     // adds one to the writer's acknowledged(), and wakes a writer that waits for that
  // The writer's process has ended. read() still returns the bytes that it has written. After them, read()
  // returns eof if the writer had called end(), otherwise connection_reset.
  void abandon();

 private:
  void publish_position();
  bool refresh_position();

  std::uint64_t acknowledged_ = 0;
  bool abandoned_ = false;
  bool ended_ = false;  // the ring is abandoned, and its writer had called end()
};

}  // namespace weft::rpc
