#include <weft/parallel/collectives/flight/flight_recorder.h>

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace weft::collectives::testing {
namespace flight_recorder_test {

FlightOperation collective(std::uint64_t sequence, std::string_view text = "barrier()",
                           rpc::Site site = rpc::Site::current()) {
  return {.sequence = sequence, .meaning = text, .site = site};
}

std::int64_t system_time() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

std::vector<std::uint64_t> numbers(const FlightRecords& records) {
  std::vector<std::uint64_t> numbers;
  for (const FlightEntry& entry : records.entries) numbers.push_back(entry.number);
  return numbers;
}

TEST(FlightRecorder, RecordsAnOperationFromStartToCompletion) {
  const std::int64_t before = system_time();
  FlightRecorder recorder;
  FlightOperation operation = collective(17, "all_reduce(sum, float32[4, 8])");
  operation.bytes = 128;
  const auto ticket = recorder.begin(operation);
  const unsigned line = __LINE__ - 3;  // of collective()
  FlightEntry entry = recorder.records().entries.at(0);
  EXPECT_EQ(entry.what_and_where(),
            "#17 all_reduce(sum, float32[4, 8]) at flight_recorder_test.cc:" + std::to_string(line));
  EXPECT_EQ(entry.state, FlightState::begun);
  EXPECT_EQ(entry.bytes, 128U);
  EXPECT_GE(entry.begun, before);
  EXPECT_EQ(entry.moved, 0);

  recorder.waits_for(ticket, {1, 3});
  recorder.moving(ticket, FlightClock::now());
  entry = recorder.records().entries.at(0);
  EXPECT_EQ(entry.state, FlightState::moving);
  EXPECT_GE(entry.moved, entry.begun);
  EXPECT_EQ(entry.ended, 0);
  EXPECT_EQ(entry.waits_for, (std::vector<int>{1, 3}));

  recorder.done(ticket);
  recorder.failed(ticket, "too late to fail");
  const FlightRecords records = recorder.records();
  entry = records.entries.at(0);
  EXPECT_EQ(entry.state, FlightState::done);
  EXPECT_GE(entry.ended, entry.moved);
  EXPECT_EQ(entry.error, "");
  EXPECT_EQ(records.begun, 18U);
  EXPECT_EQ(records.dropped, 0U);
  EXPECT_GE(records.taken, entry.ended);
  EXPECT_LE(records.taken, system_time());
}

TEST(FlightRecorder, RecordsCompletedOperations) {
  FlightRecorder recorder;
  FlightOperation operation = collective(3);
  operation.begun = FlightClock::now();
  recorder.note(operation);
  const FlightRecords records = recorder.records();
  const FlightEntry& entry = records.entries.at(0);
  EXPECT_EQ(entry.state, FlightState::done);
  EXPECT_EQ(entry.sequence, 3U);
  EXPECT_NE(entry.begun, 0);
  EXPECT_GE(entry.ended, entry.begun);
  EXPECT_EQ(records.begun, 4U);
}

TEST(FlightClock, IsBetweenItsReadings) {
  const std::int64_t before = system_time();
  const FlightClock clock;
  const auto first = FlightClock::now();
  std::int64_t after = 0;
  while ((after = system_time()) < before + 1'000'000) {  // long enough for a millisecond of difference
  }
  const auto second = FlightClock::now();
  const FlightClock::Scale scale = clock.scale();
  EXPECT_LE(before, scale.time_of(first));
  EXPECT_LT(scale.time_of(first), scale.time_of(second));
  EXPECT_LE(scale.time_of(second), scale.taken());
  EXPECT_LE(scale.taken(), system_time());
  EXPECT_EQ(scale.time_of(~FlightClock::Ticks{0}), scale.taken());  // a counter that is not even
  EXPECT_GE(scale.time_of(1), before);
}

TEST(FlightRecorder, RecordsMessagesAndFailures) {
  FlightRecorder recorder;
  const auto send = recorder.begin({.kind = FlightKind::send, .meaning = "float32[4]", .peer = 2, .tag = 7});
  const auto recv = recorder.begin({.kind = FlightKind::recv, .meaning = "int64[]"});
  recorder.failed(send, "it differs");
  auto entries = recorder.records().entries;
  ASSERT_EQ(entries.size(), 2U);
  EXPECT_EQ(entries[0].what_and_where(), "send(float32[4], to 2, tag 7)");
  EXPECT_EQ(entries[0].state, FlightState::failed);
  EXPECT_EQ(entries[0].error, "it differs");
  EXPECT_NE(entries[0].ended, 0);
  EXPECT_EQ(entries[1].what(), "recv(int64[], from any)");
  recorder.received(recv, 3);
  entries = recorder.records().entries;
  EXPECT_EQ(entries[1].what(), "recv(int64[], from 3)");
  EXPECT_EQ(entries[1].state, FlightState::done);
  recorder.note({.kind = FlightKind::values, .sequence = 5, .meaning = "split()"});
  EXPECT_EQ(recorder.records().entries.back().what(), "values #5 split()");
  EXPECT_EQ(recorder.records().begun, 0U);  // collectives
  EXPECT_EQ(recorder.records().begun_values, 6U);
}

TEST(FlightRecorder, RendersOnlyOnRequest) {
  static int rendered;
  rendered = 0;
  FlightRecorder recorder;
  std::string meaning = "abc";
  recorder.begin({.meaning = meaning, .render = [](std::string_view given) {
                    ++rendered;
                    return "<" + std::string(given) + ">";
                  }});
  meaning = "xyz";  // was copied
  EXPECT_EQ(rendered, 0);
  EXPECT_EQ(recorder.records().entries.at(0).text, "<abc>");
  EXPECT_EQ(rendered, 1);
}

TEST(FlightRecorder, KeepsTheLatestRecords) {
  FlightRecorder recorder(3);  // rounded up to four
  for (std::uint64_t i = 0; i < 10; ++i) recorder.done(recorder.begin(collective(i)));
  const FlightRecords records = recorder.records();
  EXPECT_EQ(numbers(records), (std::vector<std::uint64_t>{6, 7, 8, 9}));
  EXPECT_EQ(records.dropped, 6U);
  EXPECT_EQ(records.begun, 10U);
}

TEST(FlightRecorder, NeverDropsPendingOperations) {
  FlightRecorder recorder(4);
  const auto hangs = recorder.begin(collective(0)), fails = recorder.begin(collective(1)),
             late = recorder.begin(collective(2));
  for (std::uint64_t i = 3; i < 10; ++i) recorder.done(recorder.begin(collective(i)));
  EXPECT_EQ(numbers(recorder.records()), (std::vector<std::uint64_t>{0, 1, 2, 6, 7, 8, 9}));
  recorder.moving(hangs, FlightClock::now());
  recorder.failed(fails, "lost");
  recorder.done(late);  // as old as the dropped records
  const FlightRecords records = recorder.records();
  EXPECT_EQ(numbers(records), (std::vector<std::uint64_t>{0, 1, 6, 7, 8, 9}));
  EXPECT_EQ(records.entries[0].state, FlightState::moving);
  EXPECT_EQ(records.entries[1].error, "lost");
  EXPECT_EQ(records.dropped, 4U);
}

TEST(FlightRecorder, FailuresDoNotAccumulate) {
  FlightRecorder recorder(4);
  const auto hangs = recorder.begin(collective(0));
  for (std::uint64_t i = 1; i < 100; ++i) recorder.failed(recorder.begin(collective(i)), "differs");
  const auto kept = numbers(recorder.records());
  EXPECT_EQ(kept.size(), 8U);
  EXPECT_EQ(kept.front(), hangs);
  EXPECT_EQ(kept.back(), 99U);
}

TEST(FlightRecorder, IgnoresTicketsOfDroppedRecords) {
  FlightRecorder recorder(2);
  const auto gone = recorder.begin(collective(0));
  recorder.done(gone);
  for (std::uint64_t i = 1; i < 3; ++i) recorder.begin(collective(i));
  recorder.moving(gone, FlightClock::now());
  recorder.failed(gone, "not any more");
  recorder.waits_for(gone, {1});
  for (const FlightEntry& entry : recorder.records().entries) {
    EXPECT_EQ(entry.state, FlightState::begun);
    EXPECT_TRUE(entry.waits_for.empty());
  }
}

TEST(FlightRecorder, IsReadWhileOtherThreadsWrite) {
  FlightRecorder recorder(64);
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> sequence{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i)
    threads.emplace_back([&] {
      while (!stop) {
        const std::uint64_t mine = sequence++;
        const std::string text(1 + mine % 50, static_cast<char>('a' + mine % 26));
        const auto ticket = recorder.begin(collective(mine, text));
        recorder.moving(ticket, FlightClock::now());
        recorder.done(ticket);
      }
    });
  while (sequence < 20'000)
    for (const FlightEntry& entry : recorder.records().entries) {
      const std::uint64_t mine = entry.sequence;
      EXPECT_EQ(entry.text, std::string(1 + mine % 50, static_cast<char>('a' + mine % 26)));
    }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(recorder.records().begun, sequence);
  EXPECT_EQ(recorder.records().dropped + recorder.records().entries.size(), sequence);
}

}  // namespace flight_recorder_test
}  // namespace weft::collectives::testing
