// PatternSender sends a pattern through a stream. PatternReceiver compares the received bytes.
#pragma once

#include <weft/rpc/testing/wait.h>
#include <weft/rpc/transport/byte_stream.h>

#include <gtest/gtest.h>
#include <asio/error.hpp>

#include <algorithm>
#include <random>
#include <vector>

#include "tests/support/pattern.h"

namespace weft::test {

// Writes `total` bytes of a pattern in pieces of random sizes, as fast as the stream takes them, and ends its
// direction. Call run() on the stream's loop. The sender must exist until `done` is set.
class PatternSender {
 public:
  PatternSender(rpc::ByteStream& stream, std::uint64_t total, std::size_t most, unsigned seed)
      : stream_(stream), total_(total), most_(most), pattern_(seed), random_(seed + 1) {}

  void run() {
    while (sent_ < total_) {
      pieces_.clear();
      std::uint64_t position = sent_;
      for (std::size_t count = 1 + random_() % 5; count != 0 && position < total_; --count) {
        const std::uint64_t size = std::min<std::uint64_t>(1 + random_() % most_, total_ - position);
        pieces_.push_back(pattern_.at(position, size));
        position += size;
      }
      std::error_code error;
      const std::size_t bytes = stream_.write(pieces_, error);
      if (bytes == 0) {
        if (error == asio::error::would_block) return stream_.when_writable([this] { run(); });
        ADD_FAILURE() << "after " << sent_ << " bytes written: " << error.message();
        return done.set();
      }
      ASSERT_LE(bytes, position - sent_);
      sent_ += bytes;
    }
    std::error_code error;
    stream_.shut_down_writing(error);
    EXPECT_FALSE(error) << error.message();
    done.set();
  }

  Event done;

 private:
  rpc::ByteStream& stream_;
  const std::uint64_t total_;
  const std::size_t most_;
  const Pattern pattern_;
  std::mt19937_64 random_;
  std::vector<std::span<const std::byte>> pieces_;
  std::uint64_t sent_ = 0;
};

// Reads into pieces of random sizes until the other side's end, and compares.
class PatternReceiver {
 public:
  PatternReceiver(rpc::ByteStream& stream, std::size_t most, unsigned seed)
      : stream_(stream), most_(most), pattern_(seed), random_(seed + 2), memory_(5 * most) {}

  void run() {
    for (;;) {
      pieces_.clear();
      std::span<std::byte> rest(memory_);
      for (std::size_t count = 1 + random_() % 5; count != 0; --count) {
        pieces_.push_back(rest.first(1 + random_() % most_));
        rest = rest.subspan(pieces_.back().size());
      }
      std::error_code error;
      std::size_t bytes = stream_.read(pieces_, error);
      if (bytes == 0) {
        if (error == asio::error::would_block) return stream_.when_readable([this] { run(); });
        EXPECT_EQ(error, asio::error::eof) << error.message();
        return done.set();
      }
      for (const auto piece : pieces_) {
        const auto filled = piece.first(std::min(piece.size(), bytes));
        if (!pattern_.matches(received, filled)) {
          ADD_FAILURE() << "other bytes than were written, near " << received;
          return done.set();
        }
        received += filled.size();
        bytes -= filled.size();
      }
      ASSERT_EQ(bytes, 0U);
    }
  }

  Event done;
  std::uint64_t received = 0;  // valid once `done` is set

 private:
  rpc::ByteStream& stream_;
  const std::size_t most_;
  const Pattern pattern_;
  std::mt19937_64 random_;
  std::vector<std::byte> memory_;
  std::vector<std::span<std::byte>> pieces_;
};

}  // namespace weft::test
