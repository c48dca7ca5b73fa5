#include <weft/rpc/transport/shm/ring.h>

#include <gtest/gtest.h>
#include <asio/error.hpp>

#include <algorithm>
#include <random>
#include <semaphore>

#include "tests/support/connections.h"
#include "tests/support/pattern.h"

namespace weft::rpc::ring_test {
namespace {

using asio::error::would_block;

// Counts its rings. A thread may wait for a ring.
class Bell final : public Doorbell {
 public:
  void ring() override {
    ++times_;
    rung_.release();
  }
  void wait() {
    if (!rung_.try_acquire_for(test::too_long)) throw std::runtime_error("nobody rings: a wake-up was lost");
  }
  int times() const { return times_; }

 private:
  std::counting_semaphore<> rung_{0};
  std::atomic<int> times_{0};
};

class RingTest : public testing::Test {
 protected:
  std::size_t write(std::string_view text) {
    error = {};
    return writer.write(std::array{std::as_bytes(std::span(text))}, error);
  }
  std::string read(std::size_t most = 100) {
    std::string text(most, '\0');
    error = {};
    text.resize(reader.read(std::array{std::as_writable_bytes(std::span(text))}, error));
    return text;
  }

  ShmSegment segment = ShmSegment::create(64U << 10);
  const std::size_t capacity = segment.capacity();
  RingControl& control = *reinterpret_cast<RingControl*>(segment.control());
  Bell at_writer, at_reader;  // rung to wake the writer, or the reader
  RingWriter writer{segment, at_reader};
  RingReader reader{segment, at_writer};
  std::error_code error;
};

TEST_F(RingTest, AcceptsBytesUpToItsCapacity) {
  const std::string much(3 * capacity, 'x');
  EXPECT_TRUE(writer.writable());
  EXPECT_EQ(write(much), capacity);
  EXPECT_FALSE(writer.writable());
  EXPECT_EQ(write("y"), 0U);
  EXPECT_EQ(error, would_block);
  EXPECT_EQ(read(10).size(), 10U);
  EXPECT_EQ(write("yyyyyyyyyyyyyyyyy"), 10U);
  EXPECT_EQ(read(3 * capacity), much.substr(0, capacity - 10) + "yyyyyyyyyy");
}

TEST_F(RingTest, ScattersAndGathers) {
  const std::string a = "ab", b = "cdef", c = "g";
  error = {};
  EXPECT_EQ(writer.write(std::array{std::as_bytes(std::span(a)), std::as_bytes(std::span(b)),
                                    std::as_bytes(std::span(c))},
                         error),
            7U);
  std::string x(3, '-'), y(1, '-'), z(9, '-');
  EXPECT_EQ(reader.read(std::array{std::as_writable_bytes(std::span(x)), std::as_writable_bytes(std::span(y)),
                                   std::as_writable_bytes(std::span(z))},
                        error),
            7U);
  EXPECT_EQ(x + y + z, "abcdefg------");
}

TEST_F(RingTest, EndsAfterTheWrittenBytes) {
  write("last");
  writer.end();
  EXPECT_TRUE(reader.readable());
  EXPECT_EQ(read(2), "la");
  EXPECT_EQ(read(), "st");
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(reader.readable());
    EXPECT_EQ(read(), "");
    EXPECT_EQ(error, asio::error::eof);
  }
}

TEST_F(RingTest, AnAbandonedReaderReadsTheBytesWrittenBefore) {
  write("by then");
  reader.abandon();
  write("and later");
  EXPECT_TRUE(reader.readable());
  EXPECT_EQ(read(), "by then");
  EXPECT_TRUE(reader.readable());
  EXPECT_EQ(read(), "");
  EXPECT_EQ(error, asio::error::connection_reset);
}

TEST_F(RingTest, AnAbandonedReaderRecognizesTheEndOfTheWriter) {
  write("by then");
  writer.end();
  reader.abandon();
  EXPECT_EQ(read(), "by then");
  EXPECT_EQ(read(), "");
  EXPECT_EQ(error, asio::error::eof);
}

TEST_F(RingTest, AnAwakeReaderIsNotRung) {
  for (int i = 0; i < 1000; ++i) {
    write(std::string(100, 'x'));
    read(50);
    read(50);
  }
  writer.end();
  reader.acknowledge();
  EXPECT_EQ(at_reader.times(), 0);
  EXPECT_EQ(at_writer.times(), 0);
}

TEST_F(RingTest, ASleepingReaderIsRungOnce) {
  EXPECT_TRUE(reader.fall_asleep());
  write("a");
  write("b");
  EXPECT_EQ(at_reader.times(), 1);
  EXPECT_FALSE(reader.fall_asleep());  // there are bytes to read
  write("c");
  EXPECT_EQ(at_reader.times(), 1);
  read();
  EXPECT_TRUE(reader.fall_asleep());
  reader.wake_up();
  write("d");
  EXPECT_EQ(at_reader.times(), 1);
  read();
  EXPECT_TRUE(reader.fall_asleep());
  writer.end();
  EXPECT_EQ(at_reader.times(), 2);
  EXPECT_FALSE(reader.fall_asleep());
}

TEST_F(RingTest, ASleepingWriterIsRungWhenHalfIsFree) {
  EXPECT_FALSE(writer.fall_asleep());
  write(std::string(capacity, 'x'));
  EXPECT_TRUE(writer.fall_asleep());
  read(capacity / 2 - 1);
  EXPECT_EQ(at_writer.times(), 0);
  EXPECT_FALSE(writer.writable());
  read(1);
  EXPECT_EQ(at_writer.times(), 1);
  EXPECT_TRUE(writer.writable());
  read(1);
  EXPECT_EQ(at_writer.times(), 1);
  EXPECT_FALSE(writer.fall_asleep());
}

TEST_F(RingTest, AcknowledgementsAreCountedAndAwaited) {
  EXPECT_EQ(writer.acknowledged(), 0U);
  EXPECT_TRUE(writer.await_acknowledgement(0));
  reader.acknowledge();
  reader.acknowledge();
  EXPECT_EQ(at_writer.times(), 1);
  EXPECT_EQ(writer.acknowledged(), 2U);
  EXPECT_FALSE(writer.await_acknowledgement(1));
  EXPECT_TRUE(writer.await_acknowledgement(2));
}

TEST_F(RingTest, APieceIsAnnouncedBeforeAllIsWritten) {
  ShmSegment large = ShmSegment::create(1U << 20);
  RingReader its_reader(large, at_writer);
  struct Looks final : Doorbell {
    void ring() override { seen = control->writer.position; }
    RingControl* control = nullptr;
    std::uint64_t seen = 0;
  } bell;
  bell.control = reinterpret_cast<RingControl*>(large.control());
  RingWriter its_writer(large, bell);
  EXPECT_TRUE(its_reader.fall_asleep());
  const std::string much(1U << 20, 'x');
  EXPECT_EQ(its_writer.write(std::array{std::as_bytes(std::span(much))}, error), 1U << 20);
  EXPECT_GT(bell.seen, 0U);
  EXPECT_LE(bell.seen, 128U << 10);
}

// Two threads, each of which sleeps whenever it has nothing to do. If a wake-up is lost, the test hangs.
void sleepers(const ShmSegment& segment, std::uint64_t total, std::size_t max_written, std::size_t max_read) {
  Bell at_writer, at_reader;
  const test::Pattern pattern(1);
  std::thread writes([&] {
    RingWriter writer(segment, at_reader);
    std::mt19937 random(1);
    std::uint64_t sent = 0;
    while (sent < total) {
      const std::size_t size = std::min<std::uint64_t>(1 + random() % max_written, total - sent);
      std::error_code error;
      const std::size_t bytes = writer.write(std::array{pattern.at(sent, size)}, error);
      sent += bytes;
      if (error) {
        ASSERT_EQ(error, would_block);
        if (writer.fall_asleep()) at_writer.wait();
      }
    }
    writer.end();
    while (writer.acknowledged() != 1)
      if (writer.await_acknowledgement(0)) at_writer.wait();
  });
  RingReader reader(segment, at_writer);
  std::mt19937 random(2);
  std::vector<std::byte> got(max_read);
  std::uint64_t received = 0;
  for (;;) {
    std::error_code error;
    const auto into = std::span(got).first(1 + random() % max_read);
    const std::size_t bytes = reader.read(std::array{into}, error);
    ASSERT_TRUE(pattern.matches(received, into.first(bytes)));
    received += bytes;
    if (error == asio::error::eof) break;
    if (error) {
      ASSERT_EQ(error, would_block);
      if (reader.fall_asleep()) at_reader.wait();
    }
  }
  EXPECT_EQ(received, total);
  reader.acknowledge();
  writes.join();
}

TEST_F(RingTest, NoWakeUpIsLostAmongSmallOnes) { sleepers(segment, 500'000, 20, 20); }
TEST_F(RingTest, NoWakeUpIsLostWithAFullRing) { sleepers(segment, 50'000'000, 100'000, 100'000); }
TEST_F(RingTest, NoWakeUpIsLostOfASlowReader) { sleepers(segment, 2'000'000, 100'000, 1'000); }

// --- A peer that writes invalid positions ---

TEST_F(RingTest, AnInvalidPositionFailsTheReader) {
  for (const std::uint64_t lie :
       {std::uint64_t{3}, ~std::uint64_t{0}, std::uint64_t{4 + capacity + 1}, std::uint64_t{1} << 63}) {
    std::memset(segment.control(), 0, sizeof control);
    RingWriter liar(segment, at_reader);
    RingReader victim(segment, at_writer);
    std::string text(100, '\0');
    error = {};
    liar.write(std::array{std::as_bytes(std::span("true", 4))}, error);
    victim.read(std::array{std::as_writable_bytes(std::span(text))}, error);
    control.writer.position = lie;
    EXPECT_TRUE(victim.readable());
    for (int i = 0; i < 2; ++i) {
      error = {};
      EXPECT_EQ(victim.read(std::array{std::as_writable_bytes(std::span(text))}, error), 0U);
      EXPECT_EQ(error, std::errc::protocol_error) << lie;
      control.writer.position = 4;  // too late
      EXPECT_TRUE(victim.readable());
    }
  }
}

TEST_F(RingTest, AnInvalidPositionFailsTheWriter) {
  for (const std::uint64_t lie : {std::uint64_t{5}, 3 - std::uint64_t{capacity}, std::uint64_t{1} << 63}) {
    std::memset(segment.control(), 0, sizeof control);
    RingWriter victim(segment, at_reader);
    error = {};
    victim.write(std::array{std::as_bytes(std::span("true", 4))}, error);
    control.reader.position = lie;
    EXPECT_TRUE(victim.writable());
    EXPECT_FALSE(victim.fall_asleep());
    const std::string much(2 * capacity, 'x');
    error = {};
    // The writer reads the position only if it knows of no more free space.
    while (!error) victim.write(std::array{std::as_bytes(std::span(much))}, error);
    EXPECT_EQ(error, std::errc::protocol_error) << lie;
    EXPECT_TRUE(victim.writable());
  }
}

TEST_F(RingTest, ARandomWriterCanOnlyFailItsVictim) {
  std::atomic<bool> stop{false};
  test::Event begun;
  std::thread scribbler([&] {
    std::mt19937_64 random(1);
    bool said = false;
    auto* words = reinterpret_cast<std::atomic<std::uint32_t>*>(segment.control());
    while (!stop.load(std::memory_order_relaxed)) {
      const std::uint64_t dice = random();
      words[dice % (sizeof(RingControl) / 4)].store((dice & 1024) != 0
                                                        ? static_cast<std::uint32_t>(dice >> 32)
                                                        : static_cast<std::uint32_t>(dice >> 32) % (2U << 16),
                                                    std::memory_order_relaxed);
      if ((dice & 2048) != 0)
        for (std::size_t i = 0; i < sizeof(RingControl) / 4; ++i)
          words[i].store(0, std::memory_order_relaxed);
      if (!std::exchange(said, true)) begun.set();
    }
  });
  begun.wait();
  constexpr std::byte guard{0xA5};
  std::vector<std::byte> memory(2 * capacity + 1, guard);
  const auto inside = std::span(memory).first(2 * capacity);
  std::mt19937 random(2);
  int broken = 0, moved = 0;
  // On one core the scribbler may have to wait for its turn.
  for (int i = 0; i < 3'000 || ((broken == 0 || moved == 0) && i < 1'000'000); ++i) {
    RingReader reads(segment, at_writer);
    RingWriter writes(segment, at_reader);
    for (int j = 0; j < 10; ++j) {
      const auto part = inside.last(1 + random() % 300);  // one byte more would reach the guard page
      error = {};
      const std::size_t bytes = reads.read(std::array{part}, error);
      ASSERT_LE(bytes, part.size());
      ASSERT_EQ(memory.back(), guard);
      (void)reads.fall_asleep();
      moved += bytes != 0;
      broken += error == std::errc::protocol_error;
      error = {};
      ASSERT_LE(writes.write(std::array{std::span<const std::byte>(part)}, error), part.size());
      (void)writes.fall_asleep();
      (void)writes.await_acknowledgement(7);
      if (j == 9) reads.abandon();
    }
  }
  stop = true;
  scribbler.join();
  EXPECT_GT(broken, 0);
  EXPECT_GT(moved, 0);
}

}  // namespace
}  // namespace weft::rpc::ring_test
