// Requests that an agent refuses to peers that pull streams without weft.
#include <weft/rpc/stream/stream_table.h>

#include "tests/support/cluster.h"
#include "tests/support/raw_peer.h"

namespace weft::rpc::stream_table_test {
namespace {

using namespace test;

// The deadline of a pull. A pull that is accepted by mistake waits for an item until then.
constexpr auto pull_timeout = std::chrono::seconds{20};

class Source {
 public:
  Stream<std::int64_t> open() {
    auto [writer, stream] = make_channel<std::int64_t>(4);
    writers.push_back(std::move(writer));
    return std::move(stream);
  }
  Future<void> take(Stream<std::int64_t> stream) {
    taken = std::move(stream);
    return done.future();
  }
  using Service = rpc::Service<"source", Method<"open", &Source::open>, Method<"take", &Source::take>>;
  std::deque<StreamWriter<std::int64_t>> writers;
  Stream<std::int64_t> taken;
  Promise<void> done;
};

class StreamTableTest : public testing::Test {
 protected:
  StreamTableTest() : cluster({}, {"server", "client", "other"}) {
    cluster["server"].serve(source);
    cluster["client"].serve(sink);
    server.emplace(cluster.peer("client", "server"));
  }
  ~StreamTableTest() override {
    server.reset();
    cluster.end_all();
  }
  // Makes a pull by hand. Returns the number of items in the reply.
  Future<std::uint64_t> pull(const Peer& peer, std::uint64_t id, std::uint64_t number,
                             std::uint64_t items = 8) {
    OutgoingCall call = peer.calls().make(detail::StreamTable::next_method, 4);
    call.deadline = Clock::now() + pull_timeout;  // a pull that is not refused waits for an item
    call.begin();
    call.message().argument(0).set_uint(id);
    call.message().argument(1).set_uint(number);
    call.message().argument(2).set_uint(items);
    call.message().argument(3).set_uint(1 << 20);
    call.end();
    return peer.calls().start_typed<std::uint64_t>(
        std::move(call), [](Result<PendingCall::Reply>&& reply) -> Result<std::uint64_t> {
          if (!reply.ok()) return reply.error();
          ValueReader count;
          if (!reply.value()->result().find_field("count", 2, count)) count.mismatch("a count");
          return count.get_uint();
        });
  }
  std::shared_ptr<Source> source = std::make_shared<Source>(), sink = std::make_shared<Source>();
  Cluster cluster;
  std::optional<Peer> server;
};

TEST_F(StreamTableTest, OnlyItsReceiverMayPull) {
  auto stream = got(server->call<&Source::open>());
  const Peer other = cluster.peer("other", "server");
  EXPECT_EQ(kind_of([&] { got(pull(other, 1, 0)); }), ErrorKind::permission_denied);
  detail::StreamTable::send_close(other, 1);
  EXPECT_EQ(kind_of([&] { got(pull(other, 2, 0)); }), ErrorKind::not_found);
  got(source->writers.at(0).write(7));
  EXPECT_EQ(got(stream.next()), 7) << "and nobody else ends it";
}

void take_stream(Stream<std::int64_t>) {}  // the other side is written by hand
using Take = Function<"take", &take_stream>;

// The peer answers and ends after another incarnation has connected under its name.
TEST(StreamArgumentTest, ClosesWithTheIncarnationOfItsCallee) {
  probe::Socket listener = probe::Socket::listening();
  Agent agent({.name = "server", .listen = {"tcp://127.0.0.1:0"}, .same_host = false});
  auto [writer, stream] = make_channel<std::int64_t>(4);
  const Peer peer = agent.connect(listener.address());
  auto call = peer.call<Take>(std::move(stream));
  std::optional<probe::Socket> first(listener.accept());
  (void)first->next();  // its hello
  first->send(test::bytes_of(OutgoingMessage::hello({.name = "taker", .incarnation = 7})));
  std::optional<InboundFrame> request;
  do {
    request = first->next();
    ASSERT_TRUE(request);
  } while (request->prefix.kind != FrameKind::request);

  probe::Socket second = probe::Socket::connected(agent.addresses().front());
  second.send(test::bytes_of(OutgoingMessage::hello({.name = "taker", .incarnation = 8})));
  eventually("the name leads to the second life", [&] { return peer.identity()->incarnation == 8; });

  auto answer = OutgoingMessage::reply();
  answer->result().set_nil();
  first->send(test::bytes_of(answer->seal_reply(request->prefix.call_id)));
  got(std::move(call));
  EXPECT_TRUE(writer.wanted());
  first.reset();
  eventually("nobody reads it any more", [&writer = writer] { return !writer.wanted(); });
}

TEST_F(StreamTableTest, OnlyTheCalleeMayPullAnArgument) {
  const Peer client = cluster["server"].connect(cluster["client"].addresses().front());  // not known yet
  auto [writer, stream] = make_channel<std::int64_t>(1);
  got(writer.write(1));
  auto call = client.call<&Source::take>(std::move(stream));
  eventually("it has arrived", [&] { return client.identity().has_value(); });
  EXPECT_EQ(kind_of([&] { got(pull(cluster.peer("other", "server"), 1, 0)); }), ErrorKind::permission_denied);
  EXPECT_EQ(got(pull(*server, 1, 0)), 1U);
}

TEST_F(StreamTableTest, PullsAreNumberedWithoutAGap) {
  auto stream = got(server->call<&Source::open>());
  for (int i = 0; i < 4; ++i) got(source->writers.at(0).write(i));
  EXPECT_EQ(got(pull(*server, 1, 0, 1)), 1U);
  EXPECT_EQ(kind_of([&] { got(pull(*server, 1, 0)); }), ErrorKind::permission_denied);
  EXPECT_EQ(kind_of([&] { got(pull(*server, 1, 2)); }), ErrorKind::permission_denied);
  EXPECT_EQ(got(pull(*server, 1, 1, 3)), 2U);
}

TEST_F(StreamTableTest, WaitingPullsAreLimited) {
  auto stream = got(server->call<&Source::open>());
  std::vector<Future<std::uint64_t>> waiting;
  for (std::uint64_t i = 0; i < 64; ++i) waiting.push_back(pull(*server, 1, i));
  EXPECT_EQ(kind_of([&] { got(pull(*server, 1, 64)); }), ErrorKind::resource_exhausted);
  stream.close();
  for (auto& pulled : waiting) EXPECT_EQ(kind_of([&] { got(std::move(pulled)); }), ErrorKind::cancelled);
  eventually("the writer knows", [&] { return !source->writers.at(0).wanted(); });
}

TEST_F(StreamTableTest, AnUnlimitedWindowIsReducedToTheLocalOne) {
  auto stream = got(server->call<&Source::open>());
  auto first = pull(*server, 1, 0, ~std::uint64_t{0});
  auto& writer = source->writers.at(0);
  got(writer.write(0));
  EXPECT_EQ(got(std::move(first)), 1U);
  std::int64_t written = 1;
  for (; written < 10'000; ++written) {
    auto done = writer.write(written);
    if (!done.ready()) break;
  }
  EXPECT_LE(written, 1 + 256 + 4) << "the item that was pulled, this agent's own window, the channel";
}

TEST_F(StreamTableTest, TooLongAListOfStreamsIsRefused) {
  OutgoingCall call = server->calls().make("weft.ping", 0);
  call.begin();
  Codec<std::vector<std::uint64_t>>::encode(call.message().section(detail::StreamTable::section_key, true),
                                            std::vector<std::uint64_t>(5000, 1));
  call.end();
  EXPECT_EQ(kind_of([&] {
              got(server->calls().start_typed<int>(std::move(call),
                                                   [](Result<PendingCall::Reply>&& reply) -> Result<int> {
                                                     if (!reply.ok()) return reply.error();
                                                     return 0;
                                                   }));
            }),
            ErrorKind::resource_exhausted);
}

}  // namespace
}  // namespace weft::rpc::stream_table_test
