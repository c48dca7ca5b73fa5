// Streams as results and as parameters of calls.
#include <numeric>

#include "tests/support/cluster.h"

namespace weft::rpc::stream_call_test {
namespace {

using namespace std::chrono_literals;
using namespace test;

struct Quote {
  std::string symbol;
  double price = 0;
};
WEFT_CODEC(Quote, symbol, price)

struct Feed {
  std::string name;
  Stream<std::int64_t> ticks;
  std::optional<Stream<Quote>> quotes;
};
WEFT_CODEC(Feed, name, ticks, quotes)

template <class T>
std::vector<T> all_of(Stream<T> stream) {
  std::vector<T> items;
  while (auto item = got(stream.next())) items.push_back(std::move(*item));
  return items;
}

class Counted {
 public:
  explicit Counted(std::atomic<int>& alive) : alive_(&alive) { ++*alive_; }
  Counted(Counted&& other) noexcept : alive_(std::exchange(other.alive_, nullptr)) {}
  Counted& operator=(Counted&&) = delete;
  ~Counted() {
    if (alive_ != nullptr) --*alive_;
  }

 private:
  std::atomic<int>* alive_;
};

class Market {
 public:
  Stream<std::int64_t> count(std::int64_t n) {
    const Counted counted(alive);
    for (std::int64_t i = 0; i < n; ++i) {
      ++made;
      co_yield i;
    }
  }
  Stream<Quote> follow(std::string symbol) {
    for (int i = 0; i < 3; ++i) {
      Quote quote{symbol, i + 0.5};  // by a name: g++ 12 destroys a braced aggregate in a co_yield twice
      co_yield std::move(quote);
    }
    throw std::runtime_error("the exchange has closed");
  }
  Task<std::int64_t> sum(Stream<std::int64_t> numbers) {
    std::int64_t total = 0;
    while (auto number = co_await numbers.next()) total += *number;
    co_return total;
  }
  Stream<std::int64_t> running_sums(Stream<std::int64_t> numbers) {
    const Counted counted(alive);
    std::int64_t total = 0;
    while (auto number = co_await numbers.next()) {
      total += *number;
      co_yield total;
    }
  }
  Feed feed() { return {"all", count(4), follow("ACME")}; }
  Task<Stream<std::int64_t>> later(CallContext& call, std::int64_t n) {
    (void)call;
    co_return count(n);
  }
  Stream<std::int64_t> held() { return take_held(); }
  void ignore(Stream<std::int64_t>) {}
  Future<void> keep(Stream<std::int64_t> numbers) {
    std::lock_guard lock(mutex_);
    kept_ = std::move(numbers);
    kept.set();
    return kept_call_.future();
  }
  std::int64_t refuse(Stream<std::int64_t>, std::int64_t) { return 0; }

  Stream<std::int64_t> take_held() {
    auto [writer, stream] = make_channel<std::int64_t>(2);
    std::lock_guard lock(mutex_);
    writers_.push_back(std::move(writer));
    return std::move(stream);
  }
  StreamWriter<std::int64_t>& writer(std::size_t i = 0) {
    std::lock_guard lock(mutex_);
    return writers_.at(i);
  }
  Stream<std::int64_t>& kept_stream() { return kept_; }

  using Service = rpc::Service<"market", Method<"count", &Market::count>, Method<"follow", &Market::follow>,
                               Method<"sum", &Market::sum>, Method<"running_sums", &Market::running_sums>,
                               Method<"feed", &Market::feed>, Method<"later", &Market::later>,
                               Method<"held", &Market::held>, Method<"ignore", &Market::ignore>,
                               Method<"keep", &Market::keep>>;

  std::atomic<int> alive{0};
  std::atomic<std::int64_t> made{0};
  Event kept;

 private:
  std::mutex mutex_;  // guards what follows
  std::deque<StreamWriter<std::int64_t>> writers_;
  Stream<std::int64_t> kept_;
  Promise<void> kept_call_;
};

Stream<std::int64_t> numbers(std::int64_t n) {
  for (std::int64_t i = 1; i <= n; ++i) co_yield i;
}

class StreamCallTest : public testing::TestWithParam<bool> {
 protected:
  StreamCallTest()
      : cluster({.tcp = GetParam(), .adjust = [this](AgentOptions& o) { o.streams = options; }}) {
    cluster.add("server");
    cluster.add("client");
    cluster["server"].serve(market);
    server.emplace(cluster.peer("client", "server"));
  }
  ~StreamCallTest() override {
    server.reset();
    cluster.end_all();
  }
  StreamOptions options{.window = {8, 4096}, .max_per_peer = 20};
  std::shared_ptr<Market> market = std::make_shared<Market>();
  Cluster cluster;
  std::optional<Peer> server;
};

INSTANTIATE_TEST_SUITE_P(Over, StreamCallTest, testing::Values(false, true),
                         [](const auto& way) { return way.param ? "Tcp" : "Memory"; });

TEST_P(StreamCallTest, AResultMayBeAStream) {
  const auto items = all_of(got(server->call<&Market::count>(100)));
  ASSERT_EQ(items.size(), 100U);
  for (std::int64_t i = 0; i < 100; ++i) EXPECT_EQ(items[static_cast<std::size_t>(i)], i);
  EXPECT_TRUE(all_of(got(server->call<&Market::count>(0))).empty());
  EXPECT_EQ(all_of(got(server->call<&Market::later>(5))).size(), 5U);
  eventually("the generators are gone", [&] { return market->alive == 0; });
}

TEST_P(StreamCallTest, AParameterMayBeAStream) {
  EXPECT_EQ(got(server->call<&Market::sum>(numbers(100))), 5050);
  auto [writer, stream] = make_channel<std::int64_t>(1);
  auto sum = server->call<&Market::sum>(std::move(stream));
  for (std::int64_t i = 1; i <= 50; ++i) got(writer.write(i));
  EXPECT_FALSE(sum.ready());
  writer.close();
  EXPECT_EQ(got(std::move(sum)), 1275);
}

TEST_P(StreamCallTest, StreamsMayFlowBothWays) {
  auto [writer, stream] = make_channel<std::int64_t>(1);
  auto sums = got(server->call<&Market::running_sums>(std::move(stream)));
  std::int64_t total = 0;
  for (std::int64_t i = 1; i <= 20; ++i) {
    got(writer.write(i));
    EXPECT_EQ(got(sums.next()), total += i) << "each answer before the next question";
  }
  writer.close();
  EXPECT_EQ(got(sums.next()), std::nullopt);
}

TEST_P(StreamCallTest, AStructMayContainAStream) {
  Feed feed = got(server->call<&Market::feed>());
  EXPECT_EQ(feed.name, "all");
  ASSERT_TRUE(feed.quotes);
  EXPECT_EQ(got(feed.quotes->next())->price, 0.5);
  EXPECT_EQ(all_of(std::move(feed.ticks)), (std::vector<std::int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(got(feed.quotes->next())->price, 1.5);
}

TEST_P(StreamCallTest, AnErrorFollowsTheItems) {
  auto quotes = got(server->call<&Market::follow>("ACME"));
  for (int i = 0; i < 3; ++i) {
    const auto quote = got(quotes.next());
    ASSERT_TRUE(quote);
    EXPECT_EQ(quote->symbol, "ACME");
  }
  try {
    got(quotes.next());
    FAIL() << "no error";
  } catch (const RemoteError& error) {
    EXPECT_EQ(error.kind(), ErrorKind::handler_failed);
    EXPECT_EQ(error.worker(), "server");
    EXPECT_EQ(error.method(), "market.follow");
    EXPECT_EQ(error.detail(), "the exchange has closed");
  }
}

// The methods as a caller with other declarations sees them.
Stream<std::string> count_texts(std::int64_t) { return {}; }
std::int64_t sum_texts(Stream<std::string>) { return 0; }
Stream<std::string> texts() {
  std::string text = "one";
  co_yield std::move(text);
}

TEST_P(StreamCallTest, AnItemOfAnotherTypeNamesPeerMethodAndItem) {
  auto result = got(server->call<Function<"market.count", &count_texts>>(3));
  EXPECT_EQ(message_of([&] { return got(result.next()); }),
            "server: market.count: item 1 of the stream: expected text, found int");
  EXPECT_EQ(kind_of([&] { return got(result.next()); }), ErrorKind::cancelled) << "it ends the stream";
  expect_error([&] { return got(server->call<Function<"market.sum", &sum_texts>>(texts())); },
               ErrorKind::type_mismatch, "client: market.sum: item 1 of the stream");
}

TEST_P(StreamCallTest, ASlowReaderMakesTheSourceWait) {
  auto items = got(server->call<&Market::count>(1'000'000));
  for (std::int64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(got(items.next()), i);
    EXPECT_LE(market->made, i + 1 + 8 + 1) << "the window, and the item at which the generator stands";
  }
}

TEST_P(StreamCallTest, AnEndlessWriterStopsAtTheWindow) {
  auto items = got(server->call<&Market::held>());
  auto& writer = market->writer();
  std::atomic<int> written{0};
  std::thread thread([&] {
    EXPECT_EQ(kind_of([&] {
                for (std::int64_t i = 0;; ++i) {
                  got(writer.write(i));
                  ++written;
                }
              }),
              ErrorKind::cancelled);
  });
  struct Joining {  // joins the thread also if an exception is thrown
    ~Joining() {
      items.close();
      thread.join();
    }
    Stream<std::int64_t>& items;
    std::thread& thread;
  } const joining{items, thread};
  EXPECT_EQ(got(items.next()), 0);
  // The window and the channel, and one item more if a pull left between the consumed item and the arrival of
  // the others, which fill the window by more than half.
  constexpr int least = 8 + 2, most = least + 1;
  eventually("all that fits is written", [&] { return written >= least; });
  for (int i = 0; i < 20; ++i) got(server->call<&Market::sum>(numbers(1)));
  EXPECT_LE(written, most);
}

TEST_P(StreamCallTest, ADroppedReaderClosesTheSource) {
  {
    auto items = got(server->call<&Market::count>(1'000'000));
    EXPECT_EQ(got(items.next()), 0);
    EXPECT_EQ(market->alive, 1);
  }
  eventually("the generator is destroyed", [&] { return market->alive == 0; });
  auto held = got(server->call<&Market::held>());
  held.close();
  eventually("the writer knows", [&] { return !market->writer().wanted(); });
  EXPECT_EQ(kind_of([&] { got(market->writer().write(1)); }), ErrorKind::cancelled);
}

TEST_P(StreamCallTest, AnUnusedStreamIsClosed) {
  {
    auto dropped = server->call<&Market::held>();
  }  // the reply arrives, but is not decoded
  eventually("it was called", [&] {
    try {
      return !market->writer().wanted();
    } catch (const std::out_of_range&) {
      return false;
    }
  });
  auto [writer, stream] = make_channel<std::int64_t>(1);
  got(server->call<&Market::ignore>(std::move(stream)));
  eventually("the argument is let go", [&, &w = writer] { return !w.wanted(); });
  auto [noted, notice] = make_channel<std::int64_t>(1);
  server->notify<&Market::ignore>(std::move(notice));
  eventually("a notification's too", [&, &w = noted] { return !w.wanted(); });
}

TEST_P(StreamCallTest, AStreamWhoseCallDoesNotArriveIsClosed) {
  auto [writer, stream] = make_channel<std::int64_t>(1);
  const Peer nobody = cluster["client"].peer("nobody");
  EXPECT_EQ(kind_of([&, &s = stream] { got(nobody.call<&Market::sum>(std::move(s))); }),
            ErrorKind::not_found);
  EXPECT_FALSE(writer.wanted());
}

TEST_P(StreamCallTest, ACancelledCallClosesItsStreamArguments) {
  auto [writer, stream] = make_channel<std::int64_t>(1);
  auto call = server->call<&Market::keep>(std::move(stream));
  market->kept.wait();
  EXPECT_TRUE(writer.wanted());
  call.cancel();
  EXPECT_EQ(kind_of([&] { got(std::move(call)); }), ErrorKind::cancelled);
  eventually("the writer knows", [&, &w = writer] { return !w.wanted(); });
  EXPECT_NE(kind_of([&] { got(market->kept_stream().next()); }), std::nullopt);
}

TEST_P(StreamCallTest, TheDeadlineOfTheCallDoesNotApplyToTheStream) {
  const Peer hurried = server->with({.timeout = 30s});
  auto items = got(hurried.call<&Market::held>());
  // The call is complete: its deadline and its cancellation no longer affect the stream.
  got(market->writer().write(7));
  EXPECT_EQ(got(items.next()), 7);
}

TEST_P(StreamCallTest, AStreamIsHandedOverOnce) {
  auto stream = numbers(3);
  const auto use = [&] { return server->call<&Market::sum>(std::move(stream)); };
  EXPECT_EQ(got(use()), 6);
  EXPECT_FALSE(stream.valid());
  EXPECT_EQ(kind_of([&] { got(use()); }), ErrorKind::failed_precondition);
  EXPECT_EQ(kind_of([&] { got(stream.next()); }), ErrorKind::failed_precondition);
}

TEST_P(StreamCallTest, AStreamIsForwardedByItsReader) {
  auto items = got(server->call<&Market::count>(50));
  EXPECT_EQ(got(server->call<&Market::sum>(std::move(items))), 49 * 25);
}

TEST_P(StreamCallTest, OpenStreamsAreLimited) {
  std::vector<Stream<std::int64_t>> open;
  for (int i = 0; i < 20; ++i) open.push_back(got(server->call<&Market::count>(5)));
  EXPECT_EQ(kind_of([&] { (void)got(server->call<&Market::count>(5)); }), ErrorKind::resource_exhausted);
  open.pop_back();
  eventually("there is room again",
             [&] { return kind_of([&] { (void)got(server->call<&Market::count>(5)); }) == std::nullopt; });
}

TEST_P(StreamCallTest, OfASelfCallKeepsItsSemantics) {
  const Peer self = cluster["server"].peer("server");
  EXPECT_EQ(all_of(got(self.call<&Market::count>(30))).size(), 30U);
  EXPECT_EQ(got(self.call<&Market::sum>(numbers(30))), 465);
}

TEST_P(StreamCallTest, TheDeathOfTheSourceFailsTheReader) {
  auto items = got(server->call<&Market::held>());
  auto next = items.next();
  cluster.end("server");
  EXPECT_EQ(kind_of([&] { got(std::move(next)); }), ErrorKind::peer_lost);
  EXPECT_EQ(kind_of([&] { got(items.next()); }), ErrorKind::peer_lost);
}

TEST_P(StreamCallTest, AnUnreadStreamFailsWithItsSource) {
  auto items = got(server->call<&Market::held>());
  cluster.end("server");
  const auto kind = kind_of([&] { got(items.next()); });
  EXPECT_TRUE(kind == ErrorKind::peer_lost || kind == ErrorKind::unavailable) << to_string(*kind);
}

TEST_P(StreamCallTest, TheDeathOfTheReaderClosesTheSource) {
  auto items = got(server->call<&Market::held>());
  auto sums = got(server->call<&Market::running_sums>(numbers(1'000'000)));
  EXPECT_EQ(got(sums.next()), 1);
  cluster.end("client");
  eventually("the writer knows", [&] { return !market->writer().wanted(); });
  eventually("the generator is destroyed", [&] { return market->alive == 0; });
}

TEST_P(StreamCallTest, DrainClosesStreamsThatAreResults) {
  auto items = got(server->call<&Market::held>());
  auto next = items.next();
  got(cluster["server"].drain(1h));
  EXPECT_EQ(kind_of([&] { got(std::move(next)); }), ErrorKind::shut_down);
  EXPECT_FALSE(market->writer().wanted());
}

TEST_P(StreamCallTest, DrainWaitsForCallsAndTheirArguments) {
  auto [writer, stream] = make_channel<std::int64_t>(1);
  auto sum = server->call<&Market::sum>(std::move(stream));
  for (std::int64_t i = 1; i <= 2; ++i) got(writer.write(i));  // the second: the handler has begun to read
  auto drained = cluster["server"].drain(1h);
  for (std::int64_t i = 3; i <= 50; ++i) got(writer.write(i));
  EXPECT_FALSE(drained.ready());
  writer.close();
  EXPECT_EQ(got(std::move(sum)), 1275);
  got(std::move(drained));
}

TEST_P(StreamCallTest, IsListedWithItsType) {
  bool found = false;
  for (const auto& info : got(list_methods(*server)))
    if (info.name == "market.running_sums") {
      found = true;
      EXPECT_EQ(info.signature, "(stream<i64>)->stream<i64>");
    }
  EXPECT_TRUE(found);
}

}  // namespace
}  // namespace weft::rpc::stream_call_test
