// The streams over sockets, on loops that sleep, spin, and do both.
#include <weft/rpc/transport/internal/socket_stream.h>

#include <asio/local/stream_protocol.hpp>

#include "tests/support/byte_stream_suite.h"
#include "tests/support/shm.h"
#include "tests/support/spinning.h"

namespace weft::test::socket_stream_test {
namespace {

using Unix = asio::local::stream_protocol;

std::unique_ptr<rpc::ByteStream> stream_of(int descriptor, const std::shared_ptr<rpc::Loop>& loop) {
  return std::make_unique<rpc::SocketStream<Unix>>(
      Unix::socket(rpc::io_context_of(*loop), Unix(), descriptor), loop, "unix test", rpc::HostPair{});
}

template <Wait left, Wait right>
class SocketKind {
 public:
  static const char* missing() { return ""; }
  const std::shared_ptr<rpc::Loop>& loop(int side) { return loops_[static_cast<std::size_t>(side)]; }
  StreamPair connect() {
    const auto sockets = socket_pair();
    return {stream_of(sockets[0], loop(0)), stream_of(sockets[1], loop(1))};
  }

 private:
  std::array<std::shared_ptr<rpc::Loop>, 2> loops_{make_loop(left), make_loop(right)};
};

using Asleep = SocketKind<Wait::sleep, Wait::sleep>;
using Spinning = SocketKind<Wait::spin, Wait::spin>;
using Mixed = SocketKind<Wait::spin, Wait::sleep>;
using Dozing = SocketKind<Wait::doze, Wait::doze>;

INSTANTIATE_TYPED_TEST_SUITE_P(SocketAsleep, ByteStreamTest, Asleep);
INSTANTIATE_TYPED_TEST_SUITE_P(SocketSpinning, ByteStreamTest, Spinning);
INSTANTIATE_TYPED_TEST_SUITE_P(SocketMixed, ByteStreamTest, Mixed);
INSTANTIATE_TYPED_TEST_SUITE_P(SocketDozing, ByteStreamTest, Dozing);

// There are more sockets than a spinning loop polls. Asio waits for the others, and all are served.
TEST(SocketStream, ASpinningLoopServesMoreSocketsThanItPolls) {
  constexpr std::size_t count = 12;
  const auto near = make_loop(Wait::spin), far = make_loop(Wait::sleep);
  std::vector<StreamPair> pairs;
  for (std::size_t i = 0; i < count; ++i) {
    const auto sockets = socket_pair();
    pairs.push_back({stream_of(sockets[0], near), stream_of(sockets[1], far)});
  }
  for (int round = 0; round < 50; ++round) {
    std::array<Event, count> readable;
    on(*near, [&] {
      for (std::size_t i = 0; i < count; ++i) {
        // A wake-up may be spurious. The job then waits again.
        const auto ask = std::make_shared<std::function<void()>>();
        *ask = [&, i, weak = std::weak_ptr(ask)] {
          pairs[i][0]->when_readable([&, i, again = weak.lock()] {
            std::array<std::byte, 8> bytes;
            std::error_code error;
            if (pairs[i][0]->read(std::array{std::span<std::byte>(bytes)}, error) == 1)
              return readable[i].set();
            (*again)();
          });
        };
        (*ask)();
      }
    });
    on(*far, [&] {
      for (const StreamPair& pair : pairs) {
        std::error_code error;
        const std::byte one{1};
        EXPECT_EQ(pair[1]->write(std::array{std::span(&one, 1)}, error), 1U);
      }
    });
    for (Event& event : readable) event.wait();
  }
  on(*near, [&] {
    for (StreamPair& pair : pairs) pair[0].reset();
  });
  on(*far, [&] {
    for (StreamPair& pair : pairs) pair[1].reset();
  });
}

}  // namespace
}  // namespace weft::test::socket_stream_test
