// The streams over shared memory, both ends in this process, on two loops.
#include <weft/rpc/transport/shm/shm_stream.h>

#include <fstream>

#include "tests/support/byte_stream_suite.h"
#include "tests/support/shm.h"
#include "tests/support/spinning.h"

namespace weft::test::shm_stream_test {
namespace {

template <Wait left, Wait right, std::size_t ring_bytes = 1U << 20>
class ShmKind {
 public:
  static const char* missing() { return ""; }
  const std::shared_ptr<rpc::Loop>& loop(int side) { return loops_[static_cast<std::size_t>(side)]; }
  StreamPair connect() {
    const rpc::ShmOptions options{.ring_bytes = ring_bytes};
    const auto sockets = socket_pair();
    const auto first = greet(sockets[0], loop(0), options), second = greet(sockets[1], loop(1), options);
    return {first->take().get(), second->take().get()};
  }

 private:
  std::array<std::shared_ptr<rpc::Loop>, 2> loops_{make_loop(left), make_loop(right)};
};

using Asleep = ShmKind<Wait::sleep, Wait::sleep>;
using Spinning = ShmKind<Wait::spin, Wait::spin>;
using Mixed = ShmKind<Wait::spin, Wait::sleep>;
using Dozing = ShmKind<Wait::doze, Wait::doze, (64U << 10)>;
using SmallRing = ShmKind<Wait::sleep, Wait::sleep, (64U << 10)>;

INSTANTIATE_TYPED_TEST_SUITE_P(ShmAsleep, ByteStreamTest, Asleep);
INSTANTIATE_TYPED_TEST_SUITE_P(ShmSpinning, ByteStreamTest, Spinning);
INSTANTIATE_TYPED_TEST_SUITE_P(ShmMixed, ByteStreamTest, Mixed);
INSTANTIATE_TYPED_TEST_SUITE_P(ShmDozing, ByteStreamTest, Dozing);
INSTANTIATE_TYPED_TEST_SUITE_P(ShmSmallRing, ByteStreamTest, SmallRing);

// --- Memory of a stream ---

// Bytes of this process's memory that are pages of rings.
std::size_t resident() {
  std::ifstream smaps("/proc/self/smaps");
  std::size_t kilobytes = 0;
  bool ring = false;
  for (std::string line; std::getline(smaps, line);) {
    if (line.find('-') < line.find(' ')) ring = line.find("weft-ring") != std::string::npos;
    if (ring && line.starts_with("Rss:")) kilobytes += std::stoul(line.substr(4));
  }
  return kilobytes * 1024;
}

TEST(ShmStreamCost, AnIdleStreamTouchesAFewPages) {
  Asleep kind;
  std::vector<StreamPair> pairs;
  const std::size_t before = resident();
  constexpr std::size_t count = 10;
  for (std::size_t i = 0; i < count; ++i) {
    auto& pair = pairs.emplace_back(kind.connect());
    Event answered;
    const std::span<const std::byte> piece = std::as_bytes(std::span("a few bytes each way"));
    on(*kind.loop(1), [&] {
      pair[1]->when_readable([&] {
        std::error_code error;
        pair[1]->write(std::array{piece}, error);
      });
    });
    on(*kind.loop(0), [&] {
      std::error_code error;
      pair[0]->write(std::array{piece}, error);
      pair[0]->when_readable([&] { answered.set(); });
    });
    answered.wait();
  }
  const std::size_t each = (resident() - before) / (2 * count);
  RecordProperty("resident_bytes_a_stream", static_cast<int>(each));
  EXPECT_GT(each, 0U);
  EXPECT_LE(each, 4 * rpc::ShmSegment::page_size());  // two control pages, two of data
  for (auto& pair : pairs)
    for (int side = 0; side < 2; ++side)
      on(*kind.loop(side), [&] { pair[static_cast<std::size_t>(side)].reset(); });
  EXPECT_EQ(resident(), before);
}

// --- Bulk data next to the stream ---

template <class Kind>
class ShmBulkTest : public testing::Test {
 protected:
  void SetUp() override {
    streams_ = kind_.connect();
    if (streams_[0]->bulk() == nullptr) GTEST_SKIP() << "this system lets no process read another's memory";
  }
  void TearDown() override {
    for (int side = 0; side < 2; ++side)
      on(*kind_.loop(side), [&] { streams_[static_cast<std::size_t>(side)].reset(); });
  }
  rpc::BulkAccess& bulk(std::size_t side) { return *streams_[side]->bulk(); }

  Kind kind_;
  StreamPair streams_;
};
using BulkKinds = testing::Types<Asleep, Spinning, Mixed, Dozing>;
TYPED_TEST_SUITE(ShmBulkTest, BulkKinds);

TYPED_TEST(ShmBulkTest, IsPulledFromThePeersMemory) {
  const Pattern pattern(1);
  const auto from = pattern.at(0, 200'000);
  std::vector<std::byte> into(from.size());
  std::error_code error;
  on(*this->kind_.loop(1), [&] {
    this->bulk(1).pull(reinterpret_cast<std::uintptr_t>(from.data()), into, error);
    EXPECT_FALSE(error) << error.message();
    this->bulk(1).pull(0, into, error);
    EXPECT_TRUE(error);
  });
  EXPECT_TRUE(pattern.matches(0, into));
}

TYPED_TEST(ShmBulkTest, AcknowledgementsAreReportedBeforeAndAfterTheyAreAwaited) {
  for (std::uint64_t round = 0; round < 50; ++round) {
    Event told;
    const auto await = [&] {
      on(*this->kind_.loop(0), [&] {
        EXPECT_EQ(this->bulk(0).acknowledged(), 2 * round);
        this->bulk(0).when_acknowledged([&] { told.set(); });
      });
    };
    const auto acknowledge = [&] { on(*this->kind_.loop(1), [&] { this->bulk(1).acknowledge(); }); };
    if (round % 2 == 0) {
      await();
      acknowledge();
      told.wait();
      acknowledge();
    } else {
      std::thread meanwhile([&] {
        acknowledge();
        acknowledge();
      });
      on(*this->kind_.loop(0), [&] { this->bulk(0).when_acknowledged([&] { told.set(); }); });
      told.wait();
      meanwhile.join();
    }
    on(*this->kind_.loop(0), [&] { EXPECT_EQ(this->bulk(0).acknowledged(), 2 * round + 2); });
  }
}

// The memory may already be used for other data.
TYPED_TEST(ShmBulkTest, APullFromAClosedStreamFails) {
  const std::array<std::byte, 100> from{};
  std::array<std::byte, 100> into;
  on(*this->kind_.loop(0), [&] { this->streams_[0]->close(); });
  on(*this->kind_.loop(1), [&] {
    std::error_code error;
    this->bulk(1).pull(reinterpret_cast<std::uintptr_t>(from.data()), into, error);
    EXPECT_TRUE(error);
  });
}

TYPED_TEST(ShmBulkTest, CloseDropsTheCallback) {
  auto held = std::make_shared<int>();
  on(*this->kind_.loop(0), [&] {
    this->bulk(0).when_acknowledged([held] { ADD_FAILURE() << "acknowledged"; });
    this->streams_[0]->close();
  });
  EXPECT_EQ(held.use_count(), 1);
}

}  // namespace
}  // namespace weft::test::shm_stream_test
