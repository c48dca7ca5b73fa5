// Streams within one program: channels and generators.
#include <weft/rpc/core/handler_pool.h>

#include "tests/support/cluster.h"

namespace weft::rpc::stream_local_test {
namespace {

using namespace test;

template <class T>
std::vector<T> all_of(Stream<T> stream) {
  std::vector<T> items;
  while (auto item = got(stream.next())) items.push_back(std::move(*item));
  return items;
}

TEST(Channel, DeliversItemsInOrderAndThenTheEnd) {
  auto [writer, stream] = make_channel<int>(4);
  for (int i = 0; i < 4; ++i) got(writer.write(i));
  writer.close();
  EXPECT_EQ(all_of(std::move(stream)), (std::vector{0, 1, 2, 3}));
}

TEST(Channel, AWriteWaitsForRoom) {
  auto [writer, stream] = make_channel<int>(1);
  got(writer.write(1));
  auto second = writer.write(2);
  EXPECT_FALSE(second.ready());
  EXPECT_EQ(kind_of([&writer = writer] { got(writer.write(3)); }), ErrorKind::resource_exhausted);
  EXPECT_EQ(got(stream.next()), 1);
  EXPECT_TRUE(second.ready());
  EXPECT_EQ(got(stream.next()), 2);
  auto third = stream.next();
  EXPECT_EQ(kind_of([&stream = stream] { got(stream.next()); }), ErrorKind::failed_precondition)
      << "one next() at a time";
  got(writer.write(3));
  EXPECT_EQ(got(std::move(third)), 3);
}

TEST(Channel, AnErrorFollowsTheItemsAndIsRepeated) {
  auto [writer, stream] = make_channel<int>(4);
  got(writer.write(1));
  writer.fail(Error(ErrorKind::unavailable, "no more quotes"));
  EXPECT_EQ(kind_of([&writer = writer] { got(writer.write(2)); }), ErrorKind::failed_precondition);
  EXPECT_EQ(got(stream.next()), 1);
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(kind_of([&stream = stream] { got(stream.next()); }), ErrorKind::unavailable);
}

TEST(Channel, ADestroyedWriterIsAnErrorForTheReader) {
  auto [writer, stream] = make_channel<int>(4);
  got(writer.write(1));
  writer = {};
  EXPECT_EQ(got(stream.next()), 1);
  EXPECT_EQ(kind_of([&stream = stream] { got(stream.next()); }), ErrorKind::aborted);
}

TEST(Channel, AWriterIsNotifiedOfADroppedReader) {
  auto [writer, stream] = make_channel<int>(1);
  got(writer.write(1));
  auto waiting = writer.write(2);
  EXPECT_TRUE(writer.wanted());
  stream.close();
  EXPECT_FALSE(writer.wanted());
  EXPECT_EQ(kind_of([&] { got(std::move(waiting)); }), ErrorKind::cancelled);
  EXPECT_EQ(kind_of([&writer = writer] { got(writer.write(3)); }), ErrorKind::cancelled);
  EXPECT_EQ(kind_of([&stream = stream] { got(stream.next()); }), ErrorKind::failed_precondition);
}

// Records its destruction, and whether the thread belongs to an agent.
class Witness {
 public:
  Witness(std::atomic<int>& gone, std::atomic<bool>* owned = nullptr) : gone_(&gone), owned_(owned) {}
  Witness(Witness&& other) noexcept : gone_(std::exchange(other.gone_, nullptr)), owned_(other.owned_) {}
  Witness& operator=(Witness&&) = delete;
  ~Witness() {
    if (gone_ == nullptr) return;
    if (owned_ != nullptr) *owned_ = OwnedThread::here();
    ++*gone_;
  }

 private:
  std::atomic<int>* gone_;
  std::atomic<bool>* owned_;
};

Stream<int> ticks(int n) {
  for (int i = 0; i < n; ++i) co_yield i;
}

Stream<int> ticks_until(int n, Witness) {
  for (int i = 0; i < n; ++i) co_yield i;
  throw Error(ErrorKind::unavailable, "no more ticks");
}

Task<int> twice(Future<int> value) { co_return 2 * co_await std::move(value); }

Stream<int> doubled(Stream<int> from) {
  while (auto item = co_await from.next()) {
    auto again = Future<int>::made(*item);
    co_yield co_await twice(std::move(again));
  }
}

Stream<int> waiting_for(Future<void> future, Witness) {
  co_yield 1;
  co_await std::move(future);
  co_yield 2;
}

Task<int> hold(Future<int> future) { co_return co_await std::move(future); }

Stream<int> waiting_for_task(Future<int> future, Witness) {
  co_yield 1;
  co_yield co_await hold(std::move(future));
}

class GeneratorTest : public testing::Test {
 protected:
  ~GeneratorTest() override { pool.join(); }
  std::atomic<int> gone{0};
  std::atomic<bool> owned{false};
  HandlerPool pool{2};
};

TEST_F(GeneratorTest, YieldsInOrder) {
  EXPECT_EQ(all_of(ticks(3).on(pool)), (std::vector{0, 1, 2}));
  EXPECT_EQ(all_of(ticks(1000).on(pool)).size(), 1000U);
  EXPECT_EQ(all_of(ticks(0).on(pool)).size(), 0U);
}

TEST_F(GeneratorTest, AwaitsFuturesTasksAndOtherStreams) {
  EXPECT_EQ(all_of(doubled(ticks(200).on(pool)).on(pool)).back(), 398);
}

TEST_F(GeneratorTest, NeedsAnExecutor) {
  auto stream = ticks(3);
  EXPECT_EQ(kind_of([&stream = stream] { got(stream.next()); }), ErrorKind::failed_precondition);
}

TEST_F(GeneratorTest, FailsWithItsError) {
  auto stream = ticks_until(1, Witness(gone)).on(pool);
  EXPECT_EQ(got(stream.next()), 0);
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(kind_of([&stream = stream] { got(stream.next()); }), ErrorKind::unavailable);
  EXPECT_EQ(gone, 1);
}

TEST_F(GeneratorTest, AnUnstartedGeneratorIsDestroyedAtOnce) {
  {
    const auto stream = ticks_until(1, Witness(gone));
  }
  EXPECT_EQ(gone, 1);
}

TEST_F(GeneratorTest, IsDestroyedAtAYieldOnItsExecutor) {
  {
    auto stream = ticks_until(5, Witness(gone, &owned)).on(pool);
    EXPECT_EQ(got(stream.next()), 0);
  }
  test::eventually("the generator is destroyed", [&] { return gone == 1; });
  EXPECT_TRUE(owned);
}

TEST_F(GeneratorTest, IsDestroyedWhereItAwaitsAFuture) {
  Promise<void> promise;
  {
    auto stream = waiting_for(promise.future(), Witness(gone, &owned)).on(pool);
    EXPECT_EQ(got(stream.next()), 1);
    auto next = stream.next();
    stream.close();
    EXPECT_EQ(kind_of([&] { got(std::move(next)); }), ErrorKind::cancelled);
  }
  test::eventually("the generator is destroyed", [&] { return gone == 1; });
  EXPECT_TRUE(owned);
  promise.complete(Result<void>{});  // no coroutine waits for it any more
}

TEST_F(GeneratorTest, IsDestroyedAfterTheTaskThatItAwaits) {
  Promise<int> promise;
  auto stream = waiting_for_task(promise.future(), Witness(gone, &owned)).on(pool);
  EXPECT_EQ(got(stream.next()), 1);
  Event begun;
  auto next = stream.next();
  stream.close();
  EXPECT_EQ(kind_of([&] { got(std::move(next)); }), ErrorKind::cancelled);
  promise.complete(7);
  test::eventually("the generator is destroyed", [&] { return gone == 1; });
  EXPECT_TRUE(owned);
}

TEST_F(GeneratorTest, FailsWhenItsExecutorEnds) {
  auto other = std::make_unique<HandlerPool>(1);
  Promise<void> promise;
  auto stream = waiting_for(promise.future(), Witness(gone)).on(*other);
  EXPECT_EQ(got(stream.next()), 1);
  auto next = stream.next();
  Event idle;  // it has begun to wait before the executor ends
  other->post([&] { idle.set(); });
  idle.wait();
  other->join();
  promise.complete(Result<void>{});
  EXPECT_EQ(kind_of([&] { got(std::move(next)); }), ErrorKind::shut_down);
  EXPECT_EQ(gone, 1);
}

TEST_F(GeneratorTest, IsDestroyedOnceWhenClosedAtAnyMoment) {
  for (int round = 0; round < 300; ++round) {
    auto stream = ticks_until(50, Witness(gone)).on(pool);
    for (int i = 0; i < round % 7; ++i) got(stream.next());
    auto next = stream.next();
    std::thread closer([&] { stream.close(); });
    std::move(next).then([](auto&&) {});
    closer.join();
  }
  test::eventually("all are destroyed", [&] { return gone == 300; });
}

}  // namespace
}  // namespace weft::rpc::stream_local_test
