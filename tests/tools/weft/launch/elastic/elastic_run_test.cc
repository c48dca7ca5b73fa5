#include "tools/weft/launch/elastic/elastic_run.h"

#include <gtest/gtest.h>

namespace weft::tool::launch::elastic::elastic_run_test {
namespace {

TEST(ElasticRun, AWorkerGetsItsEnvironment) {
  ElasticJob job;
  job.id = "job7";
  job.store = "tcp://10.0.0.1:7000";
  job.driver.min_workers = 2;
  job.driver.max_workers = 8;
  job.credentials.secret_file = "/secret";
  job.detection = "0.5";
  const WorkerPlan plan = plan_worker(job, StartWorker{12, "b", 1, 4, 5});
  EXPECT_EQ(plan.title(), "rank 5");
  EXPECT_EQ(plan.name, "worker5");
  EXPECT_EQ(plan.local_rank, 1U);
  const std::map<std::string, std::string> told{{"RANK", ""},
                                                {"WORLD_SIZE", ""},
                                                {"GROUP_RANK", ""},
                                                {"GROUP_WORLD_SIZE", ""},
                                                {"ROLE_NAME", ""},
                                                {"ROLE_RANK", ""},
                                                {"ROLE_WORLD_SIZE", ""},
                                                {"MASTER_ADDR", ""},
                                                {"MASTER_PORT", ""},
                                                {"WEFT_ROLE", ""},
                                                {"WEFT_ROLE_SIZE", ""},
                                                {"WEFT_ELASTIC_WORLD", "1"},
                                                {"WEFT_STORE", "tcp://10.0.0.1:7000"},
                                                {"WEFT_NAME", "worker5"},
                                                {"WEFT_ROLE_RANK", "5"},
                                                {"WEFT_MIN_WORKERS", "2"},
                                                {"WEFT_MAX_WORKERS", "8"},
                                                {"WEFT_SECRET", "/secret"},
                                                {"WEFT_DETECTION", "0.5"},
                                                {"LOCAL_RANK", "1"},
                                                {"LOCAL_WORLD_SIZE", "4"},
                                                {"TORCHELASTIC_RUN_ID", "job7"}};
  EXPECT_EQ(plan.environment, told);
}

}  // namespace
}  // namespace weft::tool::launch::elastic::elastic_run_test
