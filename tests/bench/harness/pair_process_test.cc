#include "bench/harness/pair.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdlib>
#include <stdexcept>

namespace weft::bench::pair_process_test {
namespace {

Outcome run(const Pair& pair) { return measure_pair(pair, {.budget = {}, .pins = {}}); }

const auto good_server = [](ServerEnd& end) {
  end.announce("here");
  end.wait_for_client();
};

TEST(Pair, BringsFiguresBack) {
  const Outcome outcome = run({good_server, [](ClientEnd& end) { end.report({{end.address(), 4}}); }});
  EXPECT_EQ(outcome.error, "");
  EXPECT_EQ(outcome.figures, (Figures{{"here", 4}}));
}

TEST(Pair, ReportsHowAProcessDied) {
  EXPECT_EQ(run({good_server, [](ClientEnd&) { throw std::runtime_error("no way"); }}).error,
            "client: no way");
  EXPECT_EQ(run({[](ServerEnd&) { throw std::runtime_error("no port"); }, nullptr}).error, "server: no port");
  const auto killed = run({good_server, [](ClientEnd&) { std::abort(); }});
  EXPECT_TRUE(killed.error.starts_with("client: died: Aborted")) << killed.error;
}

TEST(Pair, AClientWhoseServerHasDiedIsNotWaitedFor) {
  const Outcome outcome = run({[](ServerEnd& end) {
                                 end.announce("here");
                                 throw std::runtime_error("no more");
                               },
                               [](ClientEnd&) { pause(); }});
  EXPECT_EQ(outcome.error, "server: no more");
}

TEST(Pair, EitherMayBeAnotherProgram) {
  const Outcome outcome =
      run({[](ServerEnd& end) { end.become({"sh", "-c", "printf there >&3; dd count=1 <&3; printf 7 >&3"}); },
           [](ClientEnd& end) {
             end.become({"sh", "-c", R"(printf '{"figures":{"%s":4},"threads":2}' $0 >&3)", end.address()});
           }});
  EXPECT_EQ(outcome.error, "");
  EXPECT_EQ(outcome.figures, (Figures{{"there", 4}}));
  EXPECT_EQ(outcome.threads, "7/2");
  const Outcome missing = run({[](ServerEnd& end) { end.become({"/nowhere/at_all"}); }, [](ClientEnd&) {}});
  EXPECT_TRUE(missing.error.starts_with("server: cannot run /nowhere/at_all")) << missing.error;
}

Way way(const std::string& name, const Outcome& outcome) {
  return {name, [outcome](const Setting&) { return outcome; }};
}

TEST(Pair, TheBestWayIsTheOutcome) {
  const Way slow = way("slow", {.figures = {{"p50_us", 9}, {"p99_us", 10}}}),
            fast = way("fast", {.figures = {{"p50_us", 3}, {"p99_us", 90}}}),
            broken = way("broken", {.error = "no"});
  EXPECT_EQ(measure_best({slow, fast, broken}, {}).notes.at("way"), "fast");
  EXPECT_EQ(measure_best({broken, slow}, {}).notes.at("way"), "slow");
  EXPECT_EQ(measure_best({broken}, {}).error, "no");
  const Way narrow = way("narrow", {.figures = {{"GBps", 1}}}),
            wide = way("wide", {.figures = {{"GBps", 2}}});
  EXPECT_EQ(measure_best({wide, narrow}, {}).notes.at("way"), "wide");
}

}  // namespace
}  // namespace weft::bench::pair_process_test
