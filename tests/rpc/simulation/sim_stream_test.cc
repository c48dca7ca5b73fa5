// A simulated stream: the contract of ByteStream under all network faults, and all ways in which a connection
// ends.
#include <weft/rpc/testing/simulation/sim_stream.h>

#include <weft/rpc/testing/simulation/sim_seeds.h>

#include <gtest/gtest.h>

#include "tests/rpc/simulation/sim_support.h"

namespace weft::test::sim_stream_test {
namespace {

using namespace std::chrono_literals;
using Then = TextWriter::Then;

// All network faults, except resets in one case.
SimOptions rough(SimRandom& random) {
  SimOptions options;
  options.weather = SimWeather::draw(random);
  options.weather.resets = 0;
  return options;
}

TEST(SimStream, BytesArriveInOrderWhateverTheSplits) {
  std::size_t blocked = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SimRandom random(seed);
    SimWorld world(seed, rough(random));
    Pair pair(world);
    const std::string text = some_text(random, random.spread(1, 20'000));
    const bool half_close = random.coin();
    const auto writer = pair.write(text, half_close ? Then::end : Then::close);
    const auto reader = pair.read();
    ASSERT_TRUE(world.run_until_idle()) << seed;
    EXPECT_TRUE(reader->text == text) << seed;
    EXPECT_EQ(reader->error, asio::error::eof) << seed;
    EXPECT_FALSE(writer->error && writer->error != asio::error::would_block) << seed;
    EXPECT_EQ(world.violations(), std::vector<std::string>{}) << seed;
    blocked += writer->blocked;
  }
  EXPECT_GT(blocked, 100U);  // otherwise the writer never reached the window
}

TEST(SimStream, AHalfClosedStreamStillDeliversReplies) {
  SimWorld world(1);
  Pair pair(world);
  const auto asked = pair.write("question", Then::end);
  const auto question = pair.read();
  ASSERT_TRUE(world.run_until_idle());
  EXPECT_EQ(question->text, "question");
  std::error_code error;
  const std::array<std::span<const std::byte>, 1> more{std::as_bytes(std::span("more"))};
  EXPECT_EQ(pair.at_anna->write(more, error), 0U);  // this direction is closed
  EXPECT_EQ(error, asio::error::broken_pipe);
  const auto answerer = std::make_shared<TextWriter>(pair.at_bert, "answer", Then::close);
  pair.bert_loop->post([answerer] { answerer->go(); });
  const auto answer = pair.read(false);
  ASSERT_TRUE(world.run_until_idle());
  EXPECT_EQ(answer->text, "answer");
  EXPECT_EQ(answer->error, asio::error::eof);
}

TEST(SimStream, AWriterIsBlockedByAReaderThatDoesNotRead) {
  SimWorld world(1, {.weather = {.least_window = 100, .max_window = 100}});
  Pair pair(world);
  const auto writer = pair.write(std::string(1000, 'x'), Then::close);
  ASSERT_TRUE(world.run_until_idle());
  EXPECT_EQ(writer->written(), 100U);
  EXPECT_EQ(writer->error, asio::error::would_block);
  const auto reader = pair.read();
  ASSERT_TRUE(world.run_until_idle());
  EXPECT_EQ(reader->text, std::string(1000, 'x'));
}

TEST(SimStream, ClosingWithUnreadBytesResetsTheOtherSide) {
  SimWorld world(1);
  Pair pair(world);
  const auto writer = pair.write("unread", Then::stay);
  ASSERT_TRUE(world.run_until_idle());
  pair.at_bert->close();
  const auto reader = pair.read(false);
  ASSERT_TRUE(world.run_until_idle());
  EXPECT_EQ(reader->error, asio::error::connection_reset);
}

TEST(SimStream, WritingToAClosedSideIsAReset) {
  SimWorld world(1);
  Pair pair(world);
  pair.at_bert->close();
  const auto reader = pair.read(false);
  ASSERT_TRUE(world.run_until_idle());
  EXPECT_EQ(reader->error, asio::error::eof);
  const auto writer = pair.write("too late", Then::stay);
  ASSERT_TRUE(world.run_until_idle());
  const auto again = pair.write("still", Then::stay);
  ASSERT_TRUE(world.run_until_idle());
  EXPECT_EQ(again->error, asio::error::connection_reset);
}

TEST(SimStream, CloseDropsWaitingCallbacks) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    SimWorld world(seed);
    Pair pair(world);
    bool called = false;
    pair.bert_loop->post([&] {
      pair.at_bert->when_readable([&] { called = true; });
      // The job may or may not be in the loop's queue at that time.
      pair.bert_loop->schedule(world.now() + world.random().up_to(1ms), [&] {
        if (!called) pair.at_bert->close();
        called = false;
      });
    });
    pair.write("something to read", Then::stay);
    ASSERT_TRUE(world.run_until_idle());
    EXPECT_FALSE(called) << seed;
  }
}

TEST(SimStream, AResetInMidStreamReachesBothSides) {
  std::size_t read_some = 0;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    SimWorld world(seed, {.weather = {.resets = 100'000}});  // every tenth segment
    Pair pair(world);
    const std::string text = some_text(world.random(), 30'000);
    const auto writer = pair.write(text, Then::stay);
    const auto reader = pair.read();
    const auto back = pair.read(false);
    ASSERT_TRUE(world.run_until_idle());
    EXPECT_TRUE(text.starts_with(reader->text)) << seed;
    read_some += reader->text.empty() ? 0 : 1;
    if (reader->text.size() == text.size()) continue;  // no reset occurred for this seed
    EXPECT_EQ(reader->error, asio::error::connection_reset) << seed;
    EXPECT_EQ(back->error, asio::error::connection_reset) << seed;
    EXPECT_EQ(world.network().open_streams(pair.anna), 0U) << seed;
  }
  EXPECT_GT(read_some, 20U);
}

TEST(SimStream, APartitionDelaysAndHealingContinues) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    SimRandom random(seed);
    SimWorld world(seed, rough(random));
    Pair pair(world);
    const std::string text = some_text(random, 30'000);
    pair.write(text, Then::end);
    const auto reader = pair.read();
    world.after(random.up_to(2ms), [&] {
      if (random.coin()) {
        world.network().partition({"anna"}, {"bert"});
      } else {  // the written bytes either cannot be acknowledged, or do not arrive
        random.coin() ? world.network().cut("bert", "anna") : world.network().cut("anna", "bert");
      }
    });
    world.run_for(1min);
    const std::size_t before = reader->text.size();
    world.run_for(1min);
    EXPECT_EQ(reader->text.size(), before) << seed;
    world.network().heal();
    ASSERT_TRUE(world.run_until_idle());
    EXPECT_TRUE(reader->text == text) << seed;
    EXPECT_EQ(reader->error, asio::error::eof) << seed;
  }
}

TEST(SimStream, AWriterGivesUpDuringAnEndlessPartition) {
  for (const char* from : {"anna", "bert"}) {
    SimWorld world(1);
    Pair pair(world);
    world.network().cut(from, from == std::string("anna") ? "bert" : "anna");
    pair.write("is anybody there", Then::stay);
    pair.read();  // either no bytes arrive, or their acknowledgement is lost
    const auto reader = pair.read(false);
    const auto start = world.now();
    ASSERT_TRUE(world.run_until_idle());
    EXPECT_EQ(reader->error, asio::error::timed_out);
    EXPECT_GE(world.now() - start, 15min);
    // bert only reads, so it does not learn that anna has given up until it writes.
    EXPECT_EQ(world.network().open_streams(pair.bert), 1U);
    world.network().heal();
    const auto late = std::make_shared<TextWriter>(pair.at_bert, "here", Then::stay);
    pair.bert_loop->post([late] { late->go(); });
    ASSERT_TRUE(world.run_until_idle());
    EXPECT_EQ(world.network().open_streams(pair.bert), 0U);
  }
}

TEST(SimStream, ABlackholeIsSilent) {
  SimWorld world(1, {.weather = {.least_window = 64, .max_window = 64}});
  Pair pair(world);
  world.network().blackhole("bert", "anna");
  const auto writer = pair.write(std::string(1000, 'x'), Then::close);
  const auto reader = pair.read();
  world.run_for(10min);
  EXPECT_EQ(writer->written(), 64U);  // accepted by write(), but never delivered
  EXPECT_EQ(reader->text, "");
  EXPECT_EQ(reader->error, asio::error::would_block);
  ASSERT_TRUE(world.run_until_idle());
  EXPECT_EQ(writer->error, asio::error::timed_out);
  EXPECT_EQ(reader->error, asio::error::would_block);
}

// --- Crashes ---

TEST(SimStream, TheKernelOfACrashedProcessEndsItsStreams) {
  bool whole = false, cut = false;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SimWorld world(seed);
    Pair pair(world);
    const auto writer = pair.write(some_text(world.random(), 5000), Then::stay);
    const auto reader = pair.read();
    world.after(world.random().up_to(1ms), [&] { world.crash(pair.anna, SimCrash::process); });
    ASSERT_TRUE(world.run_until_idle());
    EXPECT_EQ(reader->error, asio::error::eof) << seed;
    EXPECT_EQ(reader->text.size(), writer->written()) << seed;  // sent before the crash
    whole |= writer->written() == 5000;
    cut |= writer->written() != 5000;
  }
  EXPECT_TRUE(whole && cut);
}

TEST(SimStream, ACrashedHostIsSilentUntilItIsBack) {
  for (const bool back : {false, true}) {
    SimWorld world(1);
    Pair pair(world);
    world.crash(pair.bert, SimCrash::host);
    const auto reader = pair.read(false);
    world.run_for(1h);
    EXPECT_EQ(reader->error, asio::error::would_block);
    if (back) world.start("bert");
    const auto start = world.now();
    pair.write("are you there", Then::stay);
    ASSERT_TRUE(world.run_until_idle());
    EXPECT_EQ(reader->error, back ? asio::error::connection_reset : asio::error::timed_out);
    EXPECT_EQ(world.now() - start < 1min, back);
  }
}

// --- Contract violations are detected ---

TEST(SimStream, DetectsViolationsOfTheContract) {
  SimWorld world(1);
  Pair pair(world);
  std::error_code error;
  std::array<std::byte, 4> bytes{};
  const std::array<std::span<std::byte>, 1> into{std::span(bytes)};
  const auto wrong = [&](const std::string& what, auto misuse) {
    const std::size_t before = world.violations().size();
    pair.anna_loop->post(misuse);
    EXPECT_TRUE(world.run_until_idle());
    ASSERT_EQ(world.violations().size(), before + 1) << what;
    EXPECT_NE(world.violations().back().find(what), std::string::npos) << world.violations().back();
  };
  wrong("off its loop", [&] { pair.at_bert->read(into, error); });
  wrong("when_readable() twice", [&] {
    pair.at_anna->when_readable([] {});
    pair.at_anna->when_readable([] {});
  });
  wrong("read() into nothing", [&] { pair.at_anna->read({}, error); });
  wrong("write() of nothing", [&] { pair.at_anna->write({}, error); });
  wrong("read() after close()", [&] {
    pair.at_anna->close();
    pair.at_anna->close();  // a second close() is a violation
    pair.at_anna->read(into, error);
  });
}

TEST(SimStream, NamesItsOwner) {
  SimWorld world(1);
  Pair pair(world);
  EXPECT_EQ(pair.at_anna->describe(), "sim anna -> bert #1");
  EXPECT_EQ(pair.at_bert->describe(), "sim bert <- anna #1");
  EXPECT_EQ(pair.at_anna->identity(), "sim:bert");
}

TEST(SimStream, MayOutliveItsWorld) {
  std::shared_ptr<rpc::ByteStream> stream;
  {
    SimWorld world(1);
    Pair pair(world);
    stream = pair.at_anna;
    pair.write("never read", Then::stay);
  }
  std::error_code error;
  std::array<std::byte, 4> bytes{};
  const std::array<std::span<std::byte>, 1> into{std::span(bytes)};
  EXPECT_EQ(stream->read(into, error), 0U);
  EXPECT_EQ(error, asio::error::operation_aborted);
  stream->when_readable([] {});
  stream->close();
}

}  // namespace
}  // namespace weft::test::sim_stream_test
