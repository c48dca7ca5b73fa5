#include "tests/parallel/elastic/pipeline/pipelines.h"

namespace weft::elastic {
namespace elastic_pipeline_test {

using namespace pipelines;

// One pipeline is left, and one worker without a place. The stages are on their workers, so no stage is
// built.
TEST_F(ElasticPipelines, TrainingContinuesWithFewerPipelines) {
  for (const std::string name : {"anna", "bert", "cleo", "dora"}) worker(name);
  dies_at(*workers[1], 7);
  for (auto& each : workers) start(*each, {.workers = {.min = 2, .start = 4}});
  EXPECT_THROW(end(*workers[1]), Died);
  for (const int survivor : {0, 2, 3}) end(*workers[survivor]);
  expect_undisturbed();
  EXPECT_EQ(log.at(5).pipelines, 2);
  EXPECT_EQ(log.at(6).pipelines, 1);  // two pipelines computed the step, and it was lost
  EXPECT_EQ(workers[0]->changes.back().gone, Names{"bert"});
  EXPECT_EQ(places_with_stages(), 2);
  for (const int survivor : {0, 2, 3}) EXPECT_EQ(workers[survivor]->trained.size(), 1U);
}

// The other pipeline has the state of the stage that was lost.
TEST_F(ElasticPipelines, ASpareTakesALostStageFromAReplica) {
  for (const std::string name : {"anna", "bert", "cleo", "dora", "emil"}) worker(name);
  dies_at(*workers[2], 7);
  for (auto& each : workers) start(*each, {.workers = {.min = 2, .start = 5}}, 0);
  EXPECT_THROW(end(*workers[2]), Died);
  for (const int survivor : {0, 1, 3, 4}) end(*workers[survivor]);
  expect_undisturbed();
  for (const auto& [step, computed] : log) EXPECT_EQ(computed.pipelines, 2);
  EXPECT_EQ(workers[4]->model.place(), (PipelinePlace{1, 0}));
}

// One pipeline and a spare. The spare has a copy of the lost stage's commit, or gets it from the previous
// rank. The results have the same bits as without a loss.
TEST_F(ElasticPipelines, ASpareTakesALostStageFromACopyBitForBit) {
  const auto losses = [&](std::optional<std::size_t> dies) {
    log.clear();
    for (const std::string name : {"anna", "bert", "cleo"}) worker(name);
    if (dies) dies_at(*workers[*dies], 7);
    for (auto& each : workers) start(*each, {.workers = {.min = 2, .start = 3}});
    std::vector<double> measured;
    for (std::size_t number = 0; number < workers.size(); ++number) {
      if (number == dies) {
        EXPECT_THROW(end(*workers[number]), Died);
      } else {
        end(*workers[number]);
      }
    }
    expect_undisturbed();
    for (const auto& [step, computed] : log) measured.push_back(computed.losses.at(0));
    EXPECT_EQ(workers[2]->model.has_stages(), dies.has_value());
    while (!workers.empty()) workers.pop_back();
    store = std::make_unique<test::InProcessJobStore>();
    return measured;
  };
  const std::vector<double> undisturbed = losses(std::nullopt);
  EXPECT_EQ(losses(1), undisturbed);
}

TEST_F(ElasticPipelines, WorkersThatJoinFormAPipeline) {
  for (const std::string name : {"anna", "bert", "cleo", "dora"}) worker(name);
  workers[0]->before_step = [&](std::int64_t step, const Group& group) {
    if (step != 3 || group.size() != 2) return;
    for (const int joins : {2, 3}) start(*workers[joins], {.workers = {.min = 2}});
    for (const char* const name : {"cleo", "dora"}) await_ready(workers[0]->job, name);
  };
  for (const int first : {0, 1}) start(*workers[first], {.workers = {.min = 2}});
  for (auto& each : workers) end(*each);
  expect_undisturbed();
  EXPECT_EQ(log.at(3).pipelines, 1);
  EXPECT_EQ(log.at(steps - 1).pipelines, 2);
}

// The other ranks wait in groups of the pipelines, which run() does not know.
TEST_F(ElasticPipelines, AFailureOfOneRankFailsTheStepOnAllRanks) {
  for (const std::string name : {"anna", "bert", "cleo", "dora"}) worker(name);
  bool failed = false;
  workers[2]->before_step = [&](std::int64_t step, const Group&) {
    if (step == 7 && !std::exchange(failed, true))
      throw rpc::Error(ErrorKind::unavailable, "the data's server is gone");
  };
  for (auto& each : workers) start(*each, {.workers = {.min = 2, .start = 4}});
  for (auto& each : workers) end(*each);
  expect_undisturbed();
  for (const auto& each : workers) EXPECT_EQ(each->changes.size(), 2U);
}

TEST_F(ElasticPipelines, ALostStageWithoutCopiesIsReported) {
  for (const std::string name : {"anna", "bert", "cleo"}) worker(name);
  dies_at(*workers[1], 7);
  for (auto& each : workers) start(*each, {.workers = {.min = 2, .start = 3}}, 0);
  EXPECT_THROW(end(*workers[1]), Died);
  for (const int survivor : {0, 2})
    test::expect_error([&] { end(*workers[survivor]); }, ErrorKind::failed_precondition,
                       "no worker has the shards of bert,");
}

TEST_F(ElasticPipelines, FewerWorkersThanStagesAreRefused) {
  start(worker("anna"), {});
  test::expect_error([&] { end(*workers[0]); }, ErrorKind::failed_precondition, "set WorkerLimits::min");
  EXPECT_EQ(test::kind_of([&] { workers[0]->model.pipeline(); }), ErrorKind::failed_precondition);
}

TEST_F(ElasticPipelines, RefusesOptionsThatItSetsItself) {
  const auto make = [](pipeline::CutOptions cut, pipeline::GroupPipelineOptions wanted) {
    return test::kind_of([&] { ElasticPipeline(layers(0), cut, computations, wanted); });
  };
  EXPECT_EQ(make({.cuts = {2}}, {.loss = squares}), ErrorKind::invalid_argument);
  EXPECT_EQ(make({.cuts = {2}, .built = std::set<int>{0}}, options()), ErrorKind::invalid_argument);
}

}  // namespace elastic_pipeline_test
}  // namespace weft::elastic
