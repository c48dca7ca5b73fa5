#include <weft/parallel/partition/profile_text.h>

#include <gtest/gtest.h>

#include "tests/support/errors.h"

namespace weft::partition::testing {
namespace profile_text_test {

std::string refusal(std::string_view text) {
  return test::message_of([&] { return parse_profile(text, "graph.txt"); });
}

// Lines as PipeDream's profiler writes them.
constexpr std::string_view branches =
    "node2 -- ReLU(inplace) -- forward_compute_time=2.513, backward_compute_time=2.620, "
    "activation_size=822083584.000, parameter_size=0.000\n"
    "node1 -- Input0 -- forward_compute_time=0.000, backward_compute_time=0.000, activation_size=[4.0; 8.5], "
    "parameter_size=0.000\n"
    "node3 -- Conv2d(3, 64, kernel_size=(3, 3)) -- forward_compute_time=1.000, backward_compute_time=0.500, "
    "activation_size=16.000, parameter_size=7168.000 -- stage_id=1\n"
    "\tnode1 -- node2\n"
    "\tnode1 -- node3\n";

TEST(ProfileText, ReadsTheOutputOfPipeDream) {
  const Profile profile = parse_profile(branches);
  EXPECT_EQ(profile.layers,
            (std::vector<Layer>{{"node2", "ReLU(inplace)", 2.513, 2.62, 822083584, 0},
                                {"node1", "Input0", 0, 0, 12.5, 0},
                                {"node3", "Conv2d(3, 64, kernel_size=(3, 3))", 1, 0.5, 16, 7168, 1}}));
  EXPECT_EQ(profile.edges, (std::vector<Edge>{{1, 0}, {1, 2}}));
}

TEST(ProfileText, EveryProfileRoundTrips) {
  Profile profile = parse_profile(branches);
  profile.layers[0].forward_ms = 1.0 / 3;  // more than three decimals
  profile.layers[1].activation_bytes = 1e18;
  profile.layers.push_back({.name = "empty"});
  EXPECT_EQ(parse_profile(to_text(profile)), profile);
}

TEST(ProfileText, WritesTheFormOfPipeDream) {
  EXPECT_EQ(
      to_text(sequence({{"a", "Two\nlines", 1.25, 2.5, 64, 80}, {"b", "", 0.0625, 0, 0, 0, 2}})),
      "a -- Twolines -- forward_compute_time=1.250, backward_compute_time=2.500, activation_size=64.000, "
      "parameter_size=80.000\n"
      "b --  -- forward_compute_time=0.0625, backward_compute_time=0.000, activation_size=0.000, "
      "parameter_size=0.000 -- stage_id=2\n"
      "\ta -- b\n");
}

TEST(ProfileText, EdgesMayPrecedeTheirLayersAndRepeat) {
  const std::string figures =
      "forward_compute_time=1, backward_compute_time=1, activation_size=1, parameter_size=1\r\n";
  const Profile profile =
      parse_profile("  a -- b\r\n\r\na -- x -- " + figures + "b -- y -- " + figures + "\ta -- b");
  EXPECT_EQ(profile.edges, (std::vector<Edge>{{0, 1}}));
}

TEST(ProfileText, AnErrorNamesItsLine) {
  const std::string figures =
      "forward_compute_time=1, backward_compute_time=1, activation_size=1, parameter_size=1";
  const std::string layer = "a -- x -- " + figures + "\n";
  EXPECT_EQ(
      refusal(layer + "b -- " + figures),
      "graph.txt, line 2: found 2 fields, expected 'NAME -- DESCRIPTION -- FIGURES' and optionally ' -- "
      "stage_id=N'; edges begin with a tab");
  EXPECT_EQ(refusal(layer + layer),
            "graph.txt, line 2: found the name 'a' of an earlier layer, expected unique names");
  EXPECT_EQ(refusal("a -- x -- forward_compute_time=1, backward_compute_time=1"),
            "graph.txt, line 1: found 2 figures, expected forward_compute_time, backward_compute_time, "
            "activation_size and parameter_size");
  EXPECT_EQ(refusal("a -- x -- forward=1, backward_compute_time=1, activation_size=1, parameter_size=1"),
            "graph.txt, line 1: found 'forward=1', expected 'forward_compute_time=NUMBER'");
  for (const std::string wrong : {"-1", "nan", "1e999", "", "1x", "[1; x]"})
    EXPECT_EQ(refusal("\n\na -- x -- forward_compute_time=1, backward_compute_time=1, activation_size=" +
                      wrong + ", parameter_size=1"),
              "graph.txt, line 3: activation_size is '" + std::string(wrong == "[1; x]" ? "x" : wrong) +
                  "', expected a number of at least 0");
  EXPECT_EQ(refusal("a -- x -- " + figures + " -- stage=1"),
            "graph.txt, line 1: found 'stage=1', expected 'stage_id=N'");
  EXPECT_EQ(
      refusal(layer + "\ta -- b -- c"),
      "graph.txt, line 2: found an edge with 3 names, expected 'NAME -- NAME'; layers begin without white "
      "space");
  EXPECT_EQ(refusal(layer + "\ta -- b"),
            "graph.txt, line 2: the edge names the layer 'b', expected a layer of the profile");
}

TEST(ProfileText, AnErrorOfTheGraphNamesTheText) {
  EXPECT_EQ(refusal(""), "graph.txt: profile: it has no layers, expected at least one");
  EXPECT_EQ(refusal("a -- x -- forward_compute_time=1, backward_compute_time=1, activation_size=1, "
                    "parameter_size=1\n\ta -- a"),
            "graph.txt: profile: the edges form a cycle: a -> a");
}

}  // namespace profile_text_test
}  // namespace weft::partition::testing
