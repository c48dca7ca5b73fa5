// Messages and requests that an agent refuses for their size: one message, and requests that handlers still
// hold.
#include "tests/support/cluster.h"

namespace weft::rpc::limits_test {
namespace {

using namespace test;

struct Tree {
  std::int64_t value = 0;
  std::vector<Tree> children;
};
WEFT_CODEC(Tree, value, children)

class Store {
 public:
  // Holds the bytes until the test releases them.
  Future<std::uint64_t> hold(Buffer bytes) {
    std::lock_guard lock(mutex_);
    held_.push_back({Promise<std::uint64_t>(), bytes.size()});
    return held_.back().promise.future();
  }
  Future<std::uint64_t> hold_text(std::string text) { return hold(Buffer::allocate(text.size())); }
  std::uint64_t size(std::vector<Buffer> buffers) const {
    std::uint64_t total = 0;
    for (const Buffer& buffer : buffers) total += buffer.size();
    return total;
  }
  void note(Buffer bytes) { noted += bytes.size(); }
  std::uint64_t length(std::string text) const { return text.size(); }
  Buffer make(std::uint64_t bytes) const { return Buffer::allocate(bytes); }
  std::string write(std::uint64_t bytes) const { return std::string(bytes, 'x'); }
  std::int64_t depth(Tree tree) const {
    std::int64_t depth = 1;
    for (const Tree* at = &tree; !at->children.empty(); at = &at->children.front()) ++depth;
    return depth;
  }
  std::size_t held() const {
    std::lock_guard lock(mutex_);
    return held_.size();
  }
  void release() {
    std::lock_guard lock(mutex_);
    for (auto& held : held_) held.promise.complete(held.bytes);
    held_.clear();
  }
  using Service = rpc::Service<"store", Method<"hold", &Store::hold>, Method<"hold_text", &Store::hold_text>,
                               Method<"note", &Store::note, non_blocking>, Method<"size", &Store::size>,
                               Method<"length", &Store::length>, Method<"make", &Store::make>,
                               Method<"write", &Store::write>, Method<"depth", &Store::depth>>;

  std::atomic<std::uint64_t> noted{0};

 private:
  struct Held {
    Promise<std::uint64_t> promise;
    std::uint64_t bytes;
  };
  mutable std::mutex mutex_;  // guards held_
  std::vector<Held> held_;
};

class LimitsTest : public testing::TestWithParam<bool> {
 protected:
  void start(const Limits& of_a, const Limits& of_b) {
    cluster.emplace(Cluster::Options{.tcp = GetParam(), .adjust = [=](AgentOptions& options) {
                                       options.limits = options.name == "a" ? of_a : of_b;
                                     }});
    cluster->add("a");
    cluster->add("b").serve(store);
    to_b.emplace(cluster->peer("a", "b"));
  }
  static Buffer bytes(std::uint64_t size) { return Buffer::allocate(size); }
  static void expect_refused(const std::optional<Error>& error, const std::string& words) {
    ASSERT_TRUE(error) << words;
    EXPECT_EQ(error->kind(), ErrorKind::resource_exhausted) << error->what();
    EXPECT_NE(std::string(error->what()).find(words), std::string::npos) << error->what();
  }

  template <class T>
  static void expect_not_sent(Future<T> call, const std::string& words) {
    const auto error = test::error_of([&] { got(std::move(call)); });
    expect_refused(error, words);
    EXPECT_EQ(error->execution(), Execution::not_sent);
  }
  // in_flight: a call of hold() from before the refusals, whose reply shows that they did not end the
  // connection.
  void expect_answered(Future<std::uint64_t> in_flight) {
    eventually("it is held", [&] { return store->held() == 1; });
    store->release();
    EXPECT_EQ(got(std::move(in_flight)), 100U) << "the connection is the same";
  }

  std::shared_ptr<Store> store = std::make_shared<Store>();
  std::optional<Cluster> cluster;
  std::optional<Peer> to_b;
};
INSTANTIATE_TEST_SUITE_P(Ways, LimitsTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "tcp" : "inproc"; });

TEST_P(LimitsTest, OfBytesInHandlersMakeCallsWaitAtTheCaller) {
  start({}, {.in_flight = 100'000});
  auto first = to_b->call<&Store::hold>(bytes(80'000));
  // some credit is left, and a request may exceed the rest
  auto second = to_b->call<&Store::hold>(bytes(80'000));
  auto third = to_b->call<&Store::hold>(bytes(10));
  to_b->notify<&Store::hold>(bytes(10));
  test::eventually("two are held", [&] { return store->held() == 2; });
  EXPECT_EQ(got(cluster->peer("b", "b").call<&Store::length>("b lives")), 7U);
  EXPECT_EQ(store->held(), 2U) << "the third waits at a, and so does all that comes after it";
  EXPECT_FALSE(third.ready());

  store->release();
  EXPECT_EQ(got(std::move(first)), 80'000U);
  EXPECT_EQ(got(std::move(second)), 80'000U);
  test::eventually("the remaining two are held", [&] { return store->held() == 2; });
  store->release();
  EXPECT_EQ(got(std::move(third)), 10U);
}

TEST_P(LimitsTest, OfCallsMakeCallsWaitAtTheCaller) {
  start({}, {.calls = 3});
  std::vector<Future<std::uint64_t>> calls;
  for (std::uint64_t i = 0; i < 10; ++i) calls.push_back(to_b->call<&Store::hold>(bytes(i)));
  test::eventually("three are held", [&] { return store->held() == 3; });
  calls[9].cancel();
  EXPECT_EQ(test::kind_of([&] { got(std::move(calls[9])); }), ErrorKind::cancelled);
  for (std::size_t done = 0; done < 9; done += 3) {
    test::eventually("three more are held", [&] { return store->held() == 3; });
    store->release();
    for (std::size_t i = done; i < done + 3; ++i) EXPECT_EQ(got(std::move(calls[i])), i);
  }
  EXPECT_EQ(store->held(), 0U) << "the one that was cancelled never came";
}

TEST_P(LimitsTest, OfCallsCountCancelledCallsUntilTheirReply) {
  start({}, {.calls = 1});
  auto first = to_b->call<&Store::hold>(bytes(1));
  test::eventually("it is held", [&] { return store->held() == 1; });
  first.cancel();
  EXPECT_EQ(test::kind_of([&] { got(std::move(first)); }), ErrorKind::cancelled);
  auto second = to_b->call<&Store::length>("ab");
  EXPECT_EQ(got(cluster->peer("b", "b").call<&Store::length>("b lives")), 7U);
  EXPECT_FALSE(second.ready()) << "b still works for the first";
  store->release();
  EXPECT_EQ(got(std::move(second)), 2U);
}

TEST_P(LimitsTest, OfNotificationsReturnTheirCredit) {
  start({}, {.calls = 8, .in_flight = 4000});
  for (int i = 0; i < 500; ++i)
    to_b->notify<&Store::length>(std::string(static_cast<std::size_t>(i % 7) * 100, 'x'));
  EXPECT_EQ(got(to_b->call<&Store::length>("the last")), 8U)
      << "more than the credit of either kind went before it";
}

TEST_P(LimitsTest, OfNotificationsMakeThemWait) {
  for (const std::uint64_t in_flight : {std::uint64_t{4} << 20, std::uint64_t{16} << 20}) {
    start({.in_flight = in_flight}, {.in_flight = in_flight});
    store->noted = 0;
    for (int i = 0; i < 3; ++i) to_b->notify<&Store::note>(bytes(10 << 20));
    EXPECT_EQ(got(to_b->call<&Store::length>("the last")), 8U);
    EXPECT_EQ(store->noted, std::uint64_t{30} << 20);
    EXPECT_EQ((*cluster)["a"].counts().connections_made, 1U);
  }
}

// Replies beyond Limits::in_flight delay the peer that reads them, and do not close its connection.
// b refuses calls while the replies of earlier calls wait to be sent.
TEST_P(LimitsTest, ARefusalDoesNotDisconnectAPeerThatReadsItsReplies) {
  start({}, {.in_flight = 1 << 20});
  std::vector<Future<Buffer>> calls;
  for (int i = 0; i < 64; ++i) {
    calls.push_back(to_b->call<&Store::make>(400'000));
    if (i == 32) (void)(*cluster)["b"].drain(std::chrono::seconds(60));
  }
  for (auto& call : calls) {
    const auto error = test::error_of([&] { got(std::move(call)); });
    EXPECT_EQ(error ? error->kind() : ErrorKind::shut_down, ErrorKind::shut_down)
        << (error ? error->what() : "");
  }
}

TEST_P(LimitsTest, OfRepliesDelayThePeerThatReadsThem) {
  start({}, {.in_flight = 1 << 20});
  for (const std::uint64_t size : {std::uint64_t{100'000}, std::uint64_t{1} << 20}) {
    std::vector<Future<Buffer>> calls;
    for (int i = 0; i < 64; ++i) calls.push_back(to_b->call<&Store::make>(size));
    for (auto& call : calls) EXPECT_EQ(got(std::move(call)).size(), size);
  }
  EXPECT_EQ((*cluster)["a"].counts().connections_made, 1U);
}

TEST_P(LimitsTest, OfAllConnectionsTogetherRefuseExcessRequests) {
  start({}, {.in_flight_total = 100'000});
  cluster->add("c");
  auto first = to_b->call<&Store::hold>(bytes(120'000));
  test::eventually("it is held", [&] { return store->held() == 1; });
  const auto error = test::error_of([&] { got(cluster->peer("c", "b").call<&Store::length>("x")); });
  expect_refused(error, "too many requests in flight, or too many bytes in them");
  EXPECT_EQ(error->execution(), Execution::not_sent);
  EXPECT_EQ((*cluster)["b"].counts().calls_shed, 1U);
  store->release();
  EXPECT_EQ(got(std::move(first)), 120'000U);
  test::eventually("there is room again", [&] { return (*cluster)["b"].counts().serving_bytes == 0; });
  EXPECT_EQ(got(cluster->peer("c", "b").call<&Store::length>("x")), 1U);
}

TEST_P(LimitsTest, OfAllCallsTogetherRefuseExcessCalls) {
  start({}, {.calls_total = 4});
  cluster->add("c");
  const Peer from_c = cluster->peer("c", "b");
  test::eventually("the calls that connected are over",
                   [&] { return (*cluster)["b"].counts().serving == 0; });
  std::vector<Future<std::uint64_t>> calls;
  // calls of both peers; neither exceeds the credit of its connection
  for (std::uint64_t i = 0; i < 4; ++i) {
    calls.push_back((i % 2 == 0 ? *to_b : from_c).call<&Store::hold>(bytes(i)));
    test::eventually("it is held", [&] { return store->held() == i + 1; });
  }
  for (const Peer& peer : {*to_b, from_c}) {
    expect_not_sent(peer.call<&Store::length>("x"), "too many requests in flight, or too many bytes in them");
  }
  EXPECT_EQ((*cluster)["b"].counts().calls_shed, 2U);
  EXPECT_EQ(store->held(), 4U) << "calls that are already served continue";
  store->release();
  for (std::uint64_t i = 0; i < 4; ++i) EXPECT_EQ(got(std::move(calls[i])), i);
  test::eventually("there is room again", [&] { return (*cluster)["b"].counts().serving == 0; });
  EXPECT_EQ(got(from_c.call<&Store::length>("x")), 1U);
}

TEST_P(LimitsTest, OfCallsInFlightBoundTheMemoryOfACaller) {
  start({.outgoing_calls = 3, .outgoing_bytes = 2000}, {});
  const auto idle = [&] { return (*cluster)["a"].counts().waiting == 0; };
  test::eventually("the call that connected is complete", idle);
  std::vector<Future<std::uint64_t>> calls;
  calls.push_back(to_b->call<&Store::hold>(bytes(1500)));
  calls.push_back(to_b->call<&Store::hold>(bytes(4000)));
  expect_not_sent(to_b->call<&Store::hold>(bytes(1500)),
                  "too many calls in flight, or too many bytes in them");
  calls.push_back(to_b->call<&Store::hold>(Buffer()));
  expect_refused(test::error_of([&] { got(to_b->call<&Store::length>("a fourth")); }),
                 "too many calls in flight");
  test::eventually("three are held", [&] { return store->held() == 3; });
  EXPECT_EQ((*cluster)["a"].counts().waiting_bytes, 5500U);
  store->release();
  for (auto& call : calls) got(std::move(call));
  test::eventually("no call is in flight", idle);
  EXPECT_EQ((*cluster)["a"].counts().waiting_bytes, 0U);
  EXPECT_EQ(got(to_b->call<&Store::length>("again")), 5U);
}

// Text, numbers and structs have no attachments, but their calls also hold memory.
TEST_P(LimitsTest, OfCallsInFlightAlsoCountValues) {
  start({.outgoing_values = 10'000}, {});
  const auto idle = [&] { return (*cluster)["a"].counts().waiting == 0; };
  test::eventually("the call that connected is complete", idle);
  std::vector<Future<std::uint64_t>> calls;
  for (int i = 0; i < 3; ++i) calls.push_back(to_b->call<&Store::hold_text>(std::string(4000, 'x')));
  expect_not_sent(to_b->call<&Store::hold_text>(std::string(4000, 'x')),
                  "too many calls in flight, or too many bytes in them");
  EXPECT_EQ(got(to_b->call<&Store::length>("a short one")), 11U);
  test::eventually("three are held", [&] { return store->held() == 3; });
  EXPECT_GE((*cluster)["a"].counts().waiting_bytes, 12'000U);
  store->release();
  for (auto& call : calls) EXPECT_EQ(got(std::move(call)), 4000U);
  test::eventually("no call is in flight", idle);
  EXPECT_EQ((*cluster)["a"].counts().waiting_bytes, 0U);
  EXPECT_EQ(got(to_b->call<&Store::length>(std::string(4000, 'x'))), 4000U);
}

TEST_P(LimitsTest, OfOneMessageAreReportedToItsSender) {
  const Limits limits{.message = 100'000, .header = 10'000, .attachments = 3};
  start(limits, limits);
  auto in_flight = to_b->call<&Store::hold>(bytes(100));
  expect_not_sent(to_b->call<&Store::size>(std::vector{bytes(60'000), bytes(60'000)}),
                  "store.size: a message with 120064 bytes: the limit is 100000");
  expect_not_sent(to_b->call<&Store::size>(std::vector(4, bytes(2000))),
                  "store.size: a message with 4 tensors or Buffers: the limit is 3");
  expect_not_sent(to_b->call<&Store::length>(std::string(20'000, 'x')),
                  "bytes of small values (send large ones as tensors or Buffers): the limit is 10000");
  EXPECT_EQ(got(to_b->call<&Store::size>(std::vector{bytes(40'000), bytes(40'000)})), 80'000U);
  expect_answered(std::move(in_flight));
}

TEST_P(LimitsTest, OfOneMessageApplyToReplies) {
  const Limits limits{.message = 100'000, .header = 10'000};
  start(limits, limits);
  auto in_flight = to_b->call<&Store::hold>(bytes(100));
  expect_refused(test::error_of([&] { got(to_b->call<&Store::make>(200'000)); }),
                 "b: store.make: a message with 200000 bytes: the limit is 100000");
  expect_refused(test::error_of([&] { got(to_b->call<&Store::write>(20'000)); }), "bytes of small values");
  EXPECT_EQ(got(to_b->call<&Store::make>(50'000)).size(), 50'000U);
  expect_answered(std::move(in_flight));
}

TEST_P(LimitsTest, ThatOnlyTheReceiverHasAreKnownToTheSender) {
  start({}, {.message = 100'000, .header = 10'000, .attachments = 3});
  auto in_flight = to_b->call<&Store::hold>(bytes(100));
  expect_not_sent(to_b->call<&Store::size>(std::vector{bytes(200'000)}),
                  "store.size: a message with 200000 bytes: the peer's limit is 100000");
  expect_not_sent(to_b->call<&Store::size>(std::vector(4, bytes(2000))), "the peer's limit is 3");
  expect_not_sent(to_b->call<&Store::length>(std::string(20'000, 'x')), "the peer's limit is 10000");
  expect_answered(std::move(in_flight));
}

TEST_P(LimitsTest, OfTheCallerAreKnownToTheCallee) {
  start({.message = 100'000, .header = 10'000}, {});
  auto in_flight = to_b->call<&Store::hold>(bytes(100));
  expect_refused(test::error_of([&] { got(to_b->call<&Store::make>(200'000)); }),
                 "b: store.make: a message with 200000 bytes: the peer's limit is 100000");
  expect_refused(test::error_of([&] { got(to_b->call<&Store::write>(20'000)); }),
                 "the peer's limit is 10000");
  expect_answered(std::move(in_flight));
}

TEST_P(LimitsTest, OfNestingFailOnlyTheCall) {
  start({.nesting = 200}, {.nesting = 20});
  auto in_flight = to_b->call<&Store::hold>(bytes(100));
  const auto tree = [](std::int64_t depth) {
    Tree tree;
    for (std::int64_t i = 1; i < depth; ++i) {
      Tree above;
      above.children.push_back(std::move(tree));
      tree = std::move(above);
    }
    return tree;
  };
  EXPECT_EQ(got(to_b->call<&Store::depth>(tree(2))), 2);
  expect_error([&] { got(to_b->call<&Store::depth>(tree(30))); }, ErrorKind::protocol_error);
  expect_answered(std::move(in_flight));
}

TEST(RoomOfAllConnections, IsAwaitedByLargeRequests) {
  const auto store = std::make_shared<Store>();
  Cluster cluster(
      {.tcp = true, .adjust = [](AgentOptions& options) { options.limits.in_flight_total = 1'000'000; }});
  for (const char* name : {"a", "b", "c"}) cluster.add(name);
  cluster["b"].serve(store);
  auto first = cluster.peer("a", "b").call<&Store::hold>(Buffer::allocate(900'000));
  test::eventually("it is held", [&] { return store->held() == 1; });
  const Peer from_c = cluster.peer("c", "b");
  auto second = from_c.call<&Store::hold>(Buffer::allocate(600'000));
  EXPECT_EQ(got(cluster.peer("a", "b").call<&Store::length>("small")), 5U);
  store->release();
  EXPECT_EQ(got(std::move(first)), 900'000U);
  test::eventually("the second is held", [&] { return store->held() == 1; });
  store->release();
  EXPECT_EQ(got(std::move(second)), 600'000U);
}

}  // namespace
}  // namespace weft::rpc::limits_test
