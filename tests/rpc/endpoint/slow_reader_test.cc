// A peer that reads one byte at a time: it gets no more bytes than its credit allows, and delays no other
// peer.
#include "tests/support/cluster.h"
#include "tests/support/raw_peer.h"

namespace weft::rpc::slow_reader_test {
namespace {

using probe::Socket;
using namespace test;

std::uint64_t size_of(Buffer bytes) { return bytes.size(); }
int one() { return 1; }
using Put = Function<"put", &size_of>;
using One = Function<"one", &one>;

TEST(SlowReader, UsesNoMoreMemoryThanItsCreditAndDelaysNoOtherPeer) {
  constexpr std::size_t each = 16 << 10;
  constexpr std::uint64_t credit = 4 * each;
  Agent other(probe::over_tcp("other"));
  other.serve<One>();
  Agent client(probe::over_tcp("client"));
  const Peer to_other = client.connect(other.addresses().front());
  EXPECT_EQ(got(to_other.call<One>()), 1);

  Socket listener = Socket::listening(1);
  const Peer slow = client.connect(listener.address());
  const Buffer bytes = Buffer::allocate(each);
  const std::size_t before = probe::allocated_bytes();
  const std::uint64_t sent_before = client.counts().bytes_sent;
  std::vector<Future<std::uint64_t>> calls;
  for (int i = 0; i < 1000; ++i) calls.push_back(slow.call<Put>(bytes));
  Socket reader = listener.accept();
  const HelloInfo hello{.name = "slow", .incarnation = 7, .max_calls = 1000, .max_bytes = credit};
  ASSERT_TRUE(reader.send(OutgoingMessage::hello(hello).head.bytes()));

  FrameReader frames{Limits{}};
  std::size_t answered = 0, calls_to_other = 0;
  for (std::size_t read = 1; answered < 8; ++read) {
    const auto next = frames.targets().front().first(1);
    ASSERT_EQ(reader.receive(next), 1U);
    frames.advance(1);
    if (const auto frame = frames.next(); frame && frame->prefix.kind == FrameKind::request) {
      // The bytes of unanswered requests stay within the peer's credit, plus one frame.
      const std::uint64_t to_others = calls_to_other * 1024, answers = answered * (each + 1024);
      EXPECT_LE(client.counts().bytes_sent - sent_before, credit + each + 1024 + answers + to_others);
      ASSERT_TRUE(reader.send(probe::reply<std::uint64_t>(each, frame->prefix.call_id)));
      EXPECT_EQ(got(std::move(calls[answered++])), each);
    }
    if (read % 4096 != 0) continue;
    EXPECT_EQ(got(to_other.call<One>()), 1);
    ++calls_to_other;
  }
  EXPECT_GE(calls_to_other, 32U) << "between its bytes";
  EXPECT_LT(probe::allocated_bytes(), before + (8U << 20)) << "16 MiB wait for it";
  test::eventually("what waits is lent, not copied, and the last answered call counts no more",
                   [&] { return client.counts().waiting_bytes == (1000 - answered) * each; });
  client.shut_down();
  for (std::size_t i = answered; i < calls.size(); ++i)
    EXPECT_TRUE(kind_of([&] { got(std::move(calls[i])); }));
}

}  // namespace
}  // namespace weft::rpc::slow_reader_test
