// The reader of a stream, against a source that is written by hand.
#include <weft/rpc/stream/stream_table.h>

#include "tests/support/cluster.h"
#include "tests/support/raw_peer.h"

namespace weft::rpc::reader_test {
namespace {

Stream<std::int64_t> numbers() { return {}; }  // the other side is written by hand
using Numbers = Function<"numbers", &numbers>;

// A hand-written peer, which answers the reader's pulls.
class StreamReaderTest : public testing::Test {
 protected:
  StreamReaderTest() {
    auto call = agent.connect(listener.address()).call<Numbers>();
    source.emplace(listener.accept());
    (void)source->next();  // its hello
    source->send(test::bytes_of(OutgoingMessage::hello({.name = "source", .incarnation = 7})));
    const auto asked = next();
    auto answer = OutgoingMessage::reply();
    answer->result().set_record(1).field(0, "stream").set_uint(1);
    Codec<std::vector<std::uint64_t>>::encode(answer->section(detail::StreamTable::section_key, true),
                                              std::vector<std::uint64_t>{1});
    send(*answer, asked);
    stream = test::got(std::move(call));
  }
  ~StreamReaderTest() override { source.reset(); }

  InboundFrame next() {
    for (;;) {
      auto frame = source->next();
      if (!frame) throw std::runtime_error("the reader has gone");
      if (frame->prefix.kind == FrameKind::request) return std::move(*frame);
    }
  }
  static std::uint64_t method_of(const InboundFrame& frame) {
    return IncomingMessage(frame, Limits{}).request().method;
  }
  void send(OutgoingMessage& message, const InboundFrame& request) {
    source->send(test::bytes_of(message.seal_reply(request.prefix.call_id)));
  }

  probe::Socket listener = probe::Socket::listening();
  Agent agent{{.name = "reader", .same_host = false, .log = [](const LogRecord&) {}}};
  std::optional<probe::Socket> source;
  Stream<std::int64_t> stream;
};

TEST_F(StreamReaderTest, AMalformedReplyFailsTheStreamEvenIfAnotherPullWaits) {
  auto item = stream.next();
  const auto first = next(), second = next();
  ASSERT_EQ(method_of(first), name_hash(detail::StreamTable::next_method));
  ASSERT_EQ(method_of(second), name_hash(detail::StreamTable::next_method));
  auto nonsense = OutgoingMessage::reply();
  nonsense->result().set_record(0);
  send(*nonsense, first);

  const auto close = next();
  EXPECT_EQ(method_of(close), name_hash(detail::StreamTable::close_method));
  EXPECT_EQ(test::kind_of([&] { test::got(std::move(item)); }), ErrorKind::protocol_error);
}

}  // namespace
}  // namespace weft::rpc::reader_test
