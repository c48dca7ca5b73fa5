#include "bench/harness/pair.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <stdexcept>

namespace weft::bench {
namespace {

Outcome run(const Pair& pair) { return measure_pair(pair, {.budget = {}, .pins = {}}); }

const auto good_server = [](ServerEnd& end) {
  end.announce("here");
  end.wait_for_client();
};

TEST(Pair, brings_figures_back) {
  const Outcome outcome = run({good_server, [](ClientEnd& end) { end.report({{end.address(), 4}}); }});
  EXPECT_EQ(outcome.error, "");
  EXPECT_EQ(outcome.figures, (Figures{{"here", 4}}));
}

TEST(Pair, says_how_a_process_died) {
  EXPECT_EQ(run({good_server, [](ClientEnd&) { throw std::runtime_error("no way"); }}).error,
            "client: no way");
  EXPECT_EQ(run({[](ServerEnd&) { throw std::runtime_error("no port"); }, nullptr}).error, "server: no port");
  const auto killed = run({good_server, [](ClientEnd&) { std::abort(); }});
  EXPECT_TRUE(killed.error.starts_with("client: died: Aborted")) << killed.error;
}

}  // namespace
}  // namespace weft::bench
