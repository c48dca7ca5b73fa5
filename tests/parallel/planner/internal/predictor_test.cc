#include <weft/parallel/planner/internal/predictor.h>

#include <gtest/gtest.h>

#include <random>

namespace weft::planner::testing {
namespace predictor_test {

// plan() skips a choice whose lower bound exceeds the plans that it has found. If the bound were above the
// step time, plans would be lost.
TEST(Predictor, TheLeastSecondsAreNotAboveTheStep) {
  std::mt19937 random(5);
  const Machine machine{
      .hosts = 2, .ranks_per_host = 4, .bytes_per_second = 1e12, .latency = 0, .host_latency = 0};
  for (int round = 0; round < 10; ++round) {
    std::vector<partition::Layer> layers;
    for (int i = 0; i < 17; ++i)
      layers.push_back({"layer" + std::to_string(i), "", static_cast<double>(1 + random() % 50),
                        static_cast<double>(1 + random() % 90), 1e3, 1e3});
    Model model{.profile = partition::sequence(std::move(layers))};
    if (round % 2 == 1)
      model.profile.edges.erase(model.profile.edges.begin() + 8);  // two models side by side
    const Options options{.global_batch = 24, .split_backward = round % 3 == 0 ? 1.3 : 1};
    Predictor predictor(model, machine, options);
    for (const Kind& kind : kinds())
      for (const int pipeline : {2, 4, 8}) {
        const Choice choice{.grid = {.data = 8 / pipeline, .pipeline = pipeline},
                            .schedule = std::string(kind.name),
                            .chunks = kind.chunks == 0 ? 2 : kind.chunks};
        ASSERT_EQ(predictor.problem(choice), std::nullopt);
        EXPECT_LE(predictor.least_seconds(choice), predictor.predict(choice).step_seconds * (1 + 1e-9))
            << kind.name << ' ' << pipeline;
      }
  }
}

// With equal stages there is no additional bubble, and the bound equals the step time.
TEST(Predictor, TheLeastSecondsAreTheStepOfEqualStages) {
  std::vector<partition::Layer> layers(4, {"", "", 100, 200});
  for (std::size_t i = 0; i < layers.size(); ++i) layers[i].name = "layer" + std::to_string(i);
  const Model model{.profile = partition::sequence(layers)};
  const Machine machine{.ranks_per_host = 4};
  const Options options{.global_batch = 8};
  Predictor predictor(model, machine, options);
  for (const char* name : {"1f1b", "gpipe"}) {
    const Choice choice{.grid = {.pipeline = 4}, .schedule = name};
    EXPECT_NEAR(predictor.least_seconds(choice), 11 * 0.3, 1e-9);
    EXPECT_NEAR(predictor.predict(choice).step_seconds, 11 * 0.3, 1e-9);
  }
}

}  // namespace predictor_test
}  // namespace weft::planner::testing
