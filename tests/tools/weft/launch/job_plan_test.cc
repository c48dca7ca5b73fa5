#include "tools/weft/launch/job_plan.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "tools/weft/errors.h"
#include "tools/weft/launch/cores.h"

namespace weft::tool::launch::job_plan_test {
namespace {

JobSettings job(std::vector<HostShare> hosts, std::size_t node_rank = 0, std::size_t cores = 8) {
  JobSettings settings;
  settings.hosts = std::move(hosts);
  settings.node_rank = node_rank;
  settings.master_host = "10.0.0.1";
  settings.master_port = 20000;
  settings.id = "job7";
  settings.cores.resize(cores);
  std::iota(settings.cores.begin(), settings.cores.end(), 0U);
  settings.processors = cores;
  return settings;
}

using Variables = std::map<std::string, std::string>;

TEST(JobPlan, HasTheVariablesOfTorchrun) {
  const auto workers = plan_workers(job({{{"", 2}}, {{"", 2}}}, 1));
  ASSERT_EQ(workers.size(), 2U);
  EXPECT_EQ(workers[1].rank, 3U);
  EXPECT_EQ(workers[1].title(), "rank 3");
  EXPECT_EQ(workers[1].name, "worker3");
  EXPECT_TRUE(workers[1].cores.empty());
  EXPECT_EQ(workers[1].environment, (Variables{{"RANK", "3"},
                                               {"WORLD_SIZE", "4"},
                                               {"LOCAL_RANK", "1"},
                                               {"LOCAL_WORLD_SIZE", "2"},
                                               {"GROUP_RANK", "1"},
                                               {"GROUP_WORLD_SIZE", "2"},
                                               {"ROLE_NAME", "default"},
                                               {"ROLE_RANK", "3"},
                                               {"ROLE_WORLD_SIZE", "4"},
                                               {"MASTER_ADDR", "10.0.0.1"},
                                               {"MASTER_PORT", "20000"},
                                               {"TORCHELASTIC_RUN_ID", "job7"},
                                               {"TORCHELASTIC_RESTART_COUNT", "0"},
                                               {"TORCHELASTIC_MAX_RESTARTS", "0"},
                                               {"TORCHELASTIC_USE_AGENT_STORE", "False"},
                                               {"OMP_NUM_THREADS", "4"},
                                               {"WEFT_NAME", "worker3"},
                                               {"WEFT_ROLE", ""}}));
}

TEST(JobPlan, RanksAreUniqueOverAllHosts) {
  const std::vector<HostShare> hosts{
      {{"server", 1}, {"trainer", 2}}, {{"trainer", 3}}, {{"server", 2}, {"trainer", 1}}};
  std::set<std::size_t> ranks;
  std::map<std::string, std::set<std::size_t>> role_ranks;
  std::vector<std::string> titles;
  for (std::size_t host = 0; host < hosts.size(); ++host)
    for (const WorkerPlan& worker : plan_workers(job(hosts, host))) {
      EXPECT_TRUE(ranks.insert(*worker.rank).second);
      EXPECT_TRUE(role_ranks[worker.role].insert(worker.role_rank).second);
      EXPECT_EQ(worker.environment.at("WORLD_SIZE"), "9");
      EXPECT_EQ(worker.environment.at("WEFT_ROLE_SIZE"), worker.role == "server" ? "3" : "6");
      EXPECT_EQ(worker.environment.at("WEFT_NAME"), worker.name);
      titles.push_back(worker.title());
    }
  EXPECT_EQ(*ranks.rbegin(), 8U);
  EXPECT_EQ(*role_ranks["server"].rbegin(), 2U);
  EXPECT_EQ(*role_ranks["trainer"].rbegin(), 5U);
  EXPECT_EQ(titles, (std::vector<std::string>{"server0 (rank 0)", "trainer0 (rank 1)", "trainer1 (rank 2)",
                                              "trainer2 (rank 3)", "trainer3 (rank 4)", "trainer4 (rank 5)",
                                              "server1 (rank 6)", "server2 (rank 7)", "trainer5 (rank 8)"}));
}

TEST(JobPlan, AWorkerThatJoinsHasNoRank) {
  JobSettings settings = job({{{"trainer", 2}}});
  settings.joins = true;
  settings.store = "tcp://10.0.0.1:20000";
  const auto workers = plan_workers(settings);
  EXPECT_FALSE(workers[1].rank);
  EXPECT_EQ(workers[1].title(), "trainer1");
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "WEFT_NAME"})
    EXPECT_EQ(workers[1].environment.at(name), "") << name;  // also not those of the launcher
  EXPECT_EQ(workers[1].environment.at("WEFT_STORE"), "tcp://10.0.0.1:20000");
  EXPECT_EQ(workers[1].environment.at("WEFT_ELASTIC_WORLD"), "1");
  EXPECT_EQ(workers[1].environment.at("WEFT_ROLE"), "trainer");
}

TEST(JobPlan, WorkersListenAtTheirPorts) {
  JobSettings settings = job({{{"rates", 1}, {"market", 1}}});
  EXPECT_FALSE(plan_workers(settings)[0].environment.contains("WEFT_LISTEN"));
  settings.ports = {20000, 7};
  settings.master_host = "::1";
  const auto workers = plan_workers(settings);
  EXPECT_EQ(workers[0].environment.at("WEFT_LISTEN"), "tcp://[::1]:20000");
  EXPECT_EQ(workers[1].environment.at("WEFT_LISTEN"), "tcp://[::1]:7");
}

TEST(JobPlan, ThreadsAreAPartOfTheProcessors) {
  const auto threads = [](const JobSettings& settings) {
    return plan_workers(settings).front().environment.at("OMP_NUM_THREADS");
  };
  JobSettings settings = job({{{"", 3}}});
  EXPECT_EQ(threads(settings), "2");
  settings.processors = 2;  // a quota
  EXPECT_EQ(threads(settings), "1");
  settings.own_threads = "5";  // the user's choice
  EXPECT_EQ(threads(settings), "5");
  settings.threads = 6;
  EXPECT_EQ(threads(settings), "6");
}

TEST(JobPlan, PinnedWorkersShareNoCore) {
  JobSettings settings = job({{{"", 3}}});
  settings.pin = true;
  auto workers = plan_workers(settings);
  EXPECT_EQ(workers[0].cores, (std::vector<unsigned>{0, 1}));
  EXPECT_EQ(workers[1].cores, (std::vector<unsigned>{2, 3}));
  EXPECT_EQ(workers[2].cores, (std::vector<unsigned>{4, 5}));
  settings.threads = 3;
  EXPECT_THROW(plan_workers(settings), UsageError);
  settings.hosts = {{{"", 9}}};
  settings.threads.reset();
  EXPECT_THROW(plan_workers(settings), UsageError);
}

TEST(JobPlan, RolesAreRead) {
  EXPECT_EQ(parse_role("server=2").role, "server");
  EXPECT_EQ(parse_role("server=2").workers, 2U);
  EXPECT_EQ(parse_role("data-loader").workers, 1U);
  for (const char* text : {"", "=2", "a=", "a=0", "a=-1", "a=2x", "a b=1", "a/b=1", "ps1=2", "a=100001"})
    EXPECT_THROW(parse_role(text), UsageError) << text;
}

TEST(Cores, AQuotaIsRoundedUp) {
  EXPECT_EQ(processors_of_quota("150000 100000"), 2U);
  EXPECT_EQ(processors_of_quota("100000 100000"), 1U);
  EXPECT_EQ(processors_of_quota("max 100000"), std::nullopt);
  EXPECT_EQ(processors_of_quota(""), std::nullopt);
  EXPECT_FALSE(own_cores().empty());
  EXPECT_GE(own_processors(1), 1U);
}

}  // namespace
}  // namespace weft::tool::launch::job_plan_test
