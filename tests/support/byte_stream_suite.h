// The contract of ByteStream, as a suite of tests to run against every kind of stream.
//
// A kind is a default-constructible class with these functions. loop(0) and loop(1) return
// std::shared_ptr<rpc::Loop>; a separate thread runs each loop. connect() returns two connected streams, of
// which the first belongs to loop(0); any other thread may call it. The static missing() returns why the
// system does not support this kind, or "".
//   INSTANTIATE_TYPED_TEST_SUITE_P(Tcp, ByteStreamTest, weft::test::TcpKind);
#pragma once

#include <weft/rpc/transport/byte_stream.h>

#include <gtest/gtest.h>
#include <asio/error.hpp>

#include <array>
#include <atomic>
#include <cstring>
#include <random>
#include <vector>

#include "tests/support/connections.h"
#include "tests/support/pattern.h"
#include "tests/support/pattern_streams.h"

namespace weft::test {

using StreamPair = std::array<std::unique_ptr<rpc::ByteStream>, 2>;

template <class Kind>
class ByteStreamTest : public testing::Test {
 protected:
  void SetUp() override {
    if (*Kind::missing() != 0) GTEST_SKIP() << Kind::missing();
    kind_.emplace();
    streams_ = kind_->connect();
  }
  void TearDown() override {
    for (int side = 0; side < 2; ++side) destroy(side);
  }

  rpc::Loop& loop(int side) { return *kind_->loop(side); }
  rpc::ByteStream& stream(int side) { return *streams_[static_cast<std::size_t>(side)]; }
  void destroy(int side) {
    auto& owner = streams_[static_cast<std::size_t>(side)];
    if (owner != nullptr) on(loop(side), [&] { owner.reset(); });
  }

  // The outcome of one write or read.
  struct Moved {
    std::size_t bytes = 0;
    std::error_code error;
    std::string text;
  };
  Moved write(int side, std::string_view text) {
    Moved moved;
    on(loop(side), [&] {
      const std::span<const std::byte> piece = std::as_bytes(std::span(text));
      moved.bytes = stream(side).write(std::array{piece}, moved.error);
    });
    return moved;
  }
  Moved read(int side, std::size_t most = 1000) {
    Moved moved;
    moved.text.resize(most);
    on(loop(side), [&] {
      const std::span<std::byte> piece = std::as_writable_bytes(std::span(moved.text));
      moved.bytes = stream(side).read(std::array{piece}, moved.error);
    });
    moved.text.resize(moved.bytes);
    return moved;
  }
  // Reads as soon as bytes, or the end of the stream, have arrived.
  Moved await_read(int side, std::size_t most = 1000) {
    for (;;) {
      Moved moved = read(side, most);
      if (moved.error != asio::error::would_block) return moved;
      await_readable(side);
    }
  }
  void await_readable(int side) {
    auto event = std::make_shared<Event>();
    on(loop(side), [&] { stream(side).when_readable([event] { event->set(); }); });
    event->wait();
  }
  void await_writable(int side) {
    auto event = std::make_shared<Event>();
    on(loop(side), [&] { stream(side).when_writable([event] { event->set(); }); });
    event->wait();
  }
  // Writes until the stream accepts no more bytes. Returns the number of bytes.
  std::size_t fill(int side, const Pattern& pattern) {
    std::size_t total = 0;
    on(loop(side), [&] {
      std::error_code error;
      while (!error) {
        std::error_code full;
        const std::size_t bytes = stream(side).write(std::array{pattern.at(total, 50'000)}, full);
        total += bytes;
        error = full;
        if (bytes == 0) {
          EXPECT_EQ(full, asio::error::would_block) << full.message();
        }
      }
    });
    return total;
  }
  void through(int from, std::uint64_t total, std::size_t max_written, std::size_t max_read) {
    PatternSender sender(stream(from), total, max_written, 1);
    PatternReceiver receiver(stream(1 - from), max_read, 1);
    loop(1 - from).post([&] { receiver.run(); });
    loop(from).post([&] { sender.run(); });
    receiver.done.wait();
    sender.done.wait();
    EXPECT_EQ(receiver.received, total);
  }

  std::optional<Kind> kind_;
  StreamPair streams_;
};

TYPED_TEST_SUITE_P(ByteStreamTest);

TYPED_TEST_P(ByteStreamTest, WrittenBytesAreRead) {
  EXPECT_EQ(this->write(0, "hello").bytes, 5U);
  EXPECT_EQ(this->await_read(1).text, "hello");
  EXPECT_EQ(this->write(1, "and back").bytes, 8U);
  EXPECT_EQ(this->await_read(0, 3).text, "and");
  EXPECT_EQ(this->await_read(0).text, " back");
}

TYPED_TEST_P(ByteStreamTest, AReadWithoutBytesWouldBlock) {
  const auto moved = this->read(0);
  EXPECT_EQ(moved.bytes, 0U);
  EXPECT_EQ(moved.error, asio::error::would_block);
  EXPECT_EQ(this->read(0).error, asio::error::would_block);
}

TYPED_TEST_P(ByteStreamTest, AReaderIsNotifiedOfPresentAndOfLaterBytes) {
  auto later = std::make_shared<Event>();
  on(this->loop(1), [&] { this->stream(1).when_readable([later] { later->set(); }); });
  this->write(0, "x");
  later->wait();
  this->await_readable(1);  // nothing of it has been read
  EXPECT_EQ(this->read(1).text, "x");
}

TYPED_TEST_P(ByteStreamTest, CallbacksRunOnTheLoopAndNotWithinTheCall) {
  this->write(0, "x");
  this->await_readable(1);
  Event both;
  on(this->loop(1), [&] {
    const auto ran = std::make_shared<int>(0);
    auto job = [&, ran] {
      EXPECT_TRUE(this->loop(1).running_here());
      if (++*ran == 2) both.set();
    };
    this->stream(1).when_readable(job);
    this->stream(1).when_writable(job);
    EXPECT_EQ(*ran, 0);
  });
  both.wait();
}

TYPED_TEST_P(ByteStreamTest, AFullStreamAcceptsMoreBytesAfterARead) {
  const Pattern pattern(1);
  const std::size_t first = this->fill(0, pattern);
  ASSERT_GT(first, 0U);
  auto writable = std::make_shared<Event>();
  on(this->loop(0), [&] { this->stream(0).when_writable([writable] { writable->set(); }); });
  std::uint64_t position = 0;
  while (position < first) {
    const auto moved = this->await_read(1, 30'000);
    ASSERT_TRUE(pattern.matches(position, std::as_bytes(std::span(moved.text))));
    position += moved.bytes;
  }
  writable->wait();
  EXPECT_EQ(this->write(0, "more").bytes, 4U);
  EXPECT_EQ(this->await_read(1).text, "more");
}

TYPED_TEST_P(ByteStreamTest, ManySmallWritesFormOneStream) {
  std::vector<std::span<const std::byte>> pieces;
  const Pattern pattern(1);
  for (std::size_t i = 0; i < 200; ++i) pieces.push_back(pattern.at(i * 3, 3));
  std::size_t written = 0;
  on(this->loop(0), [&] {
    std::error_code error;
    written = this->stream(0).write(pieces, error);
    EXPECT_GE(written, 64 * 3U);
  });
  std::vector<std::byte> got(600);
  std::size_t read = 0;
  while (read < written) {
    this->await_readable(1);
    on(this->loop(1), [&] {
      std::vector<std::span<std::byte>> into;
      for (std::size_t at = read; at < got.size(); ++at) into.push_back(std::span(got).subspan(at, 1));
      std::error_code error;
      read += this->stream(1).read(into, error);
    });
  }
  EXPECT_TRUE(pattern.matches(0, std::span(got).first(written)));
}

TYPED_TEST_P(ByteStreamTest, HundredMegabytesOfAllSizes) { this->through(0, 100'000'000, 150'000, 200'000); }
TYPED_TEST_P(ByteStreamTest, SmallWritesAndLargeReads) { this->through(1, 3'000'000, 100, 100'000); }
TYPED_TEST_P(ByteStreamTest, LargeWritesAndSmallReads) { this->through(0, 3'000'000, 200'000, 100); }
TYPED_TEST_P(ByteStreamTest, AnEmptyStreamEnds) { this->through(0, 0, 1, 1); }

TYPED_TEST_P(ByteStreamTest, BothDirectionsAtOnce) {
  constexpr std::uint64_t total = 30'000'000;
  PatternSender there(this->stream(0), total, 100'000, 1), back(this->stream(1), total, 3'000, 2);
  PatternReceiver at_1(this->stream(1), 5'000, 1), at_0(this->stream(0), 100'000, 2);
  this->loop(0).post([&] { there.run(); });
  this->loop(1).post([&] { back.run(); });
  this->loop(1).post([&] { at_1.run(); });
  this->loop(0).post([&] { at_0.run(); });
  for (Event* done : {&there.done, &back.done, &at_1.done, &at_0.done}) done->wait();
  EXPECT_EQ(at_1.received, total);
  EXPECT_EQ(at_0.received, total);
}

TYPED_TEST_P(ByteStreamTest, TheEndOfOneDirectionDoesNotAffectTheOther) {
  this->write(0, "last words");
  on(this->loop(0), [&] {
    std::error_code error;
    this->stream(0).shut_down_writing(error);
    EXPECT_FALSE(error);
  });
  EXPECT_EQ(this->await_read(1).text, "last words");
  EXPECT_EQ(this->await_read(1).error, asio::error::eof);
  EXPECT_EQ(this->read(1).error, asio::error::eof);
  EXPECT_EQ(this->write(1, "still here").bytes, 10U);
  EXPECT_EQ(this->await_read(0).text, "still here");
  const auto late = this->write(0, "x");
  EXPECT_EQ(late.bytes, 0U);
  EXPECT_TRUE(late.error && late.error != asio::error::would_block) << late.error.message();
}

TYPED_TEST_P(ByteStreamTest, TheOtherSidesCloseIsReadAfterItsBytes) {
  this->write(0, "last words");
  on(this->loop(0), [&] { this->stream(0).close(); });
  EXPECT_EQ(this->await_read(1).text, "last words");
  EXPECT_EQ(this->await_read(1).error, asio::error::eof);
}

TYPED_TEST_P(ByteStreamTest, CloseWakesAWaitingReaderAndWriter) {
  this->fill(1, Pattern(1));
  Event readable, writable;
  on(this->loop(1), [&] {
    this->stream(1).when_readable([&] { readable.set(); });
    this->stream(1).when_writable([&] { writable.set(); });
  });
  on(this->loop(0), [&] { this->stream(0).close(); });
  readable.wait();
  writable.wait();
  for (;;) {
    const auto moved = this->write(1, "x");
    if (moved.error == asio::error::would_block) {
      this->await_writable(1);
    } else if (moved.error) {
      break;  // finally reports that nobody reads any more
    }
  }
}

TYPED_TEST_P(ByteStreamTest, CloseDropsTheCallbacks) {
  auto held = std::make_shared<int>();
  this->fill(0, Pattern(1));
  on(this->loop(0), [&] {
    this->stream(0).when_readable([held] { ADD_FAILURE() << "readable"; });
    this->stream(0).when_writable([held] { ADD_FAILURE() << "writable"; });
    this->stream(0).close();
    this->stream(0).close();
  });
  this->destroy(0);
  on(this->loop(0), [] {});  // the cancelled operations have been notified
  EXPECT_EQ(held.use_count(), 1);
}

TYPED_TEST_P(ByteStreamTest, CloseDropsACallbackThatIsAlreadyDue) {
  this->write(1, "x");
  this->await_readable(0);
  on(this->loop(0), [&] {
    this->stream(0).when_readable([] { ADD_FAILURE() << "readable"; });
    this->stream(0).when_writable([] { ADD_FAILURE() << "writable"; });
    this->stream(0).close();
  });
  this->destroy(0);
  on(this->loop(0), [] {});
}

TYPED_TEST_P(ByteStreamTest, ACallbackMayDestroyTheStream) {
  Event destroyed;
  on(this->loop(0), [&] {
    this->stream(0).when_readable([&] {
      this->streams_[0].reset();
      destroyed.set();
    });
  });
  this->write(1, "x");
  destroyed.wait();
  EXPECT_NE(this->await_read(1).error, asio::error::would_block);
}

TYPED_TEST_P(ByteStreamTest, MayBeDestroyedInAnyState) {
  for (int state = 0; state < 8; ++state) {
    if (state != 0) this->streams_ = this->kind_->connect();
    const int side = state & 1;
    if ((state & 2) != 0) this->fill(side, Pattern(1));
    if ((state & 4) != 0)
      on(this->loop(side), [&] {
        this->stream(side).when_readable([] {});
        this->stream(side).when_writable([] {});
      });
    this->destroy(side);
    while (!this->await_read(1 - side, 100'000).error) {
    }
    this->destroy(1 - side);
  }
}

TYPED_TEST_P(ByteStreamTest, DescribesItself) {
  EXPECT_FALSE(this->stream(0).describe().empty());
  EXPECT_FALSE(this->stream(1).describe().empty());
}

REGISTER_TYPED_TEST_SUITE_P(ByteStreamTest, WrittenBytesAreRead, AReadWithoutBytesWouldBlock,
                            AReaderIsNotifiedOfPresentAndOfLaterBytes,
                            CallbacksRunOnTheLoopAndNotWithinTheCall, AFullStreamAcceptsMoreBytesAfterARead,
                            ManySmallWritesFormOneStream, HundredMegabytesOfAllSizes,
                            SmallWritesAndLargeReads, LargeWritesAndSmallReads, AnEmptyStreamEnds,
                            BothDirectionsAtOnce, TheEndOfOneDirectionDoesNotAffectTheOther,
                            TheOtherSidesCloseIsReadAfterItsBytes, CloseWakesAWaitingReaderAndWriter,
                            CloseDropsTheCallbacks, CloseDropsACallbackThatIsAlreadyDue,
                            ACallbackMayDestroyTheStream, MayBeDestroyedInAnyState, DescribesItself);

}  // namespace weft::test
