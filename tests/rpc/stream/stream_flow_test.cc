// Many items, large items, and streams in a simulated world.
#include <weft/rpc/testing/simulation/sim_agent.h>

#include <cstring>

#include "tests/support/cluster.h"
#include "tests/support/sanitizer.h"

namespace weft::rpc::stream_flow_test {
namespace {

using namespace std::chrono_literals;
using namespace test;

class Alive {
 public:
  explicit Alive(std::shared_ptr<std::atomic<int>> count) : count_(std::move(count)) { ++*count_; }
  Alive(const Alive&) = delete;
  Alive& operator=(const Alive&) = delete;
  ~Alive() { --*count_; }

 private:
  std::shared_ptr<std::atomic<int>> count_;
};

class Source {
 public:
  Stream<std::int64_t> count(std::int64_t n) {
    const Alive here(alive);
    for (std::int64_t i = 0; i < n; ++i) {
      made = i + 1;
      co_yield i;
    }
  }
  Stream<Buffer> blocks(std::int64_t n, std::int64_t bytes) {
    const Alive here(alive);
    for (std::int64_t i = 0; i < n; ++i) {
      made = i + 1;
      Buffer block = Buffer::allocate(static_cast<std::size_t>(bytes));
      std::memset(block.data(), static_cast<int>(i), block.size());
      co_yield std::move(block);
    }
  }
  Task<std::int64_t> sum(Stream<std::int64_t> numbers) {
    std::int64_t total = 0;
    while (auto number = co_await numbers.next()) total += *number;
    co_return total;
  }
  using Service = rpc::Service<"source", Method<"count", &Source::count>, Method<"blocks", &Source::blocks>,
                               Method<"sum", &Source::sum>>;
  std::shared_ptr<std::atomic<int>> alive = std::make_shared<std::atomic<int>>(0);
  std::atomic<std::int64_t> made{0};
};

Stream<std::int64_t> numbers(std::int64_t n, std::shared_ptr<std::atomic<int>> alive) {
  const Alive here(alive);
  for (std::int64_t i = 0; i < n; ++i) co_yield i;
}

Task<std::int64_t> read_all(Stream<std::int64_t> stream, const std::atomic<std::int64_t>& made,
                            std::int64_t& max_ahead) {
  std::int64_t next = 0;
  while (auto item = co_await stream.next()) {
    if (*item != next) co_return -1;
    ++next;
    max_ahead = std::max(max_ahead, made.load() - next);
  }
  co_return next;
}

TEST(StreamFlow, MemoryDoesNotGrowOverAHundredThousandItems) {
  Cluster cluster({.tcp = true}, {"server", "client"});
  auto source = std::make_shared<Source>();
  cluster["server"].serve(source);
  auto stream = got(cluster.peer("client", "server").call<&Source::count>(100'000));
  std::int64_t max_ahead = 0;
  EXPECT_EQ(cluster["client"].run(read_all(std::move(stream), source->made, max_ahead)), 100'000);
  EXPECT_LE(max_ahead, 256 + 1);
}

// The only credit is the call's, whose handler reads a stream over the same connection.
TEST(StreamFlow, StreamsUseNoCredit) {
  Cluster cluster({.adjust = [](AgentOptions& options) { options.limits.calls = 1; }}, {"here"});
  auto source = std::make_shared<Source>();
  cluster["here"].serve(source);
  const Peer self = cluster.peer("here", "here");
  EXPECT_EQ(got(self.call<&Source::sum>(numbers(1000, source->alive))), 499'500);
  eventually("the generator is gone", [&] { return *source->alive == 0; });
}

TEST(StreamFlow, OpenStreamsDoNotCountAsCalls) {
  Cluster cluster({.adjust = [](AgentOptions& options) { options.limits.calls = 2; }}, {"server", "client"});
  auto source = std::make_shared<Source>();
  cluster["server"].serve(source);
  const Peer peer = cluster.peer("client", "server");
  std::vector<Stream<std::int64_t>> open;
  for (int i = 0; i < 20; ++i) {
    open.push_back(got(peer.call<&Source::count>(10)));
    EXPECT_EQ(got(open.back().next()), 0);
  }
  for (auto& stream : open) EXPECT_EQ(got(stream.next()), 1);
}

TEST(StreamFlow, LargeItemsAreLimitedByTheirBytes) {
  constexpr std::int64_t bytes = 100'000;
  Cluster cluster({.adjust = [](AgentOptions& options) { options.streams.window = {1000, 4 * bytes}; }},
                  {"server", "client"});
  auto source = std::make_shared<Source>();
  cluster["server"].serve(source);
  auto stream = got(cluster.peer("client", "server").call<&Source::blocks>(200, bytes));
  for (std::int64_t i = 0; i < 200; ++i) {
    const auto block = got(stream.next());
    ASSERT_TRUE(block);
    ASSERT_EQ(block->size(), static_cast<std::size_t>(bytes));
    EXPECT_EQ(static_cast<std::int64_t>(block->bytes()[bytes / 2]), i % 256);
    // The window, the same number of items at the source, one item beyond these, and the batch that the
    // reader consumes.
    EXPECT_LE(source->made - (i + 1), 12);
  }
  EXPECT_FALSE(got(stream.next()));
}

TEST(StreamFlow, AnItemLargerThanTheWindowPasses) {
  Cluster cluster({.adjust = [](AgentOptions& options) { options.streams.window = {10, 100}; }},
                  {"server", "client"});
  auto source = std::make_shared<Source>();
  cluster["server"].serve(source);
  auto stream = got(cluster.peer("client", "server").call<&Source::blocks>(20, 50'000));
  for (int i = 0; i < 20; ++i) EXPECT_EQ(got(stream.next())->size(), 50'000U);
  EXPECT_FALSE(got(stream.next()));
}

TEST(StreamFlow, AWindowOfOne) {
  Cluster cluster({}, {"server", "client"});
  auto source = std::make_shared<Source>();
  cluster["server"].serve(source);
  auto stream = got(cluster.peer("client", "server").call<&Source::count>(30)).window({1, 1});
  for (std::int64_t i = 0; i < 30; ++i) {
    EXPECT_EQ(got(stream.next()), i);
    EXPECT_LE(source->made, i + 2);
  }
  EXPECT_FALSE(got(stream.next()));
}

// Whatever the network does, every item arrives once and in order, and no state is left. Only the first
// connection may fail.
TEST(StreamFlow, ItemsArriveOnceAndInOrderInASimulatedWorld) {
  int whole = 0, cut = 0;
  for (std::uint64_t seed = 1; seed <= test::times(60); ++seed) {
    SimWorld world(seed);
    world.network().weather() = test::SimWeather::draw(world.random());
    auto source = std::make_shared<Source>();
    auto sent = std::make_shared<std::atomic<int>>(0);
    Agent& anna = test::start_agent(world.start("anna"), {.streams = {.window = {16, 1 << 20}}});
    Agent& bert = test::start_agent(world.start("bert"), {.loops = 2});
    bert.serve(source);
    const Peer peer = anna.connect("sim://bert");
    const std::int64_t n = static_cast<std::int64_t>(seed * 7 % 150);
    const bool fault = seed % 3 == 0;
    std::int64_t next = 0;
    try {
      auto sum = peer.call<&Source::sum>(numbers(n, sent));
      auto stream = world.got(peer.call<&Source::count>(n), 10h);
      while (auto item = world.got(stream.next(), 10h)) {
        ASSERT_EQ(*item, next) << "seed " << seed;
        ++next;
        if (fault && next == n / 2) world.network().reset_any();
      }
      EXPECT_EQ(next, n) << "seed " << seed;
      EXPECT_EQ(world.got(std::move(sum), 10h), n * (n - 1) / 2) << "seed " << seed;
      ++whole;
    } catch (const Error& error) {
      EXPECT_TRUE(error.kind() == ErrorKind::peer_lost || error.kind() == ErrorKind::unavailable)
          << "seed " << seed << ": " << error.what();
      ++cut;
    }
    world.run_for(10h);
    EXPECT_EQ(*source->alive, 0) << "seed " << seed;
    EXPECT_EQ(*sent, 0) << "seed " << seed;
    EXPECT_EQ(bert.counts().serving, 0U) << "seed " << seed;
    EXPECT_EQ(anna.counts().serving, 0U) << "seed " << seed;
    EXPECT_EQ(anna.counts().waiting + bert.counts().waiting, 0U) << "seed " << seed;
  }
  if (test::under_tsan) return;  // too few seeds under TSan
  EXPECT_GT(whole, 50);
  EXPECT_LT(cut, 5);
}

}  // namespace
}  // namespace weft::rpc::stream_flow_test
