#include <weft/rpc/job/job_url.h>

#include <weft/rpc/job/environment.h>

#include "tests/support/cluster.h"
#include "tests/support/job.h"

namespace weft::rpc::job_url_test {
namespace {

using detail::job_url;
using detail::JobUrl;
using test::got;
using Variables = std::map<std::string, std::string>;

MemberOptions options(const std::string& url, const Variables& variables = {}) {
  return options_from(
      url,
      [&](const std::string& name) {
        const auto found = variables.find(name);
        return found == variables.end() ? std::nullopt : std::optional(found->second);
      },
      [](const std::string& host) { return host.starts_with("127.") ? host : "10.0.0.7"; });
}

template <class F>
std::string said_by(F&& f) {
  const auto error = test::error_of(f);
  if (!error) return "accepted";
  EXPECT_EQ(error->kind(), ErrorKind::invalid_argument);
  return error->what();
}
std::string refusal(const std::string& url) {
  return said_by([&] { return job_url(url); });
}
std::string refusal(const std::string& url, const Variables& variables) {
  return said_by([&] { return options(url, variables); });
}

// --- The text ---

TEST(JobUrl, ContainsTheStoreOfAJob) {
  const JobUrl tcp = job_url("tcp://10.0.0.1:29500?rank=1&world_size=4");
  EXPECT_EQ(tcp.store, "tcp://10.0.0.1:29500");
  EXPECT_EQ(tcp.rank, 1U);
  EXPECT_EQ(tcp.world_size, 4U);
  EXPECT_EQ(job_url("tcp://[fd00::1]:29500?rank=0").store, "tcp://[fd00::1]:29500");
  EXPECT_EQ(job_url("tcp://node0:29500?world_size=4").rank, std::nullopt);
  EXPECT_EQ(job_url("tcp://node0:29500").store, "tcp://node0:29500");

  const JobUrl file = job_url("file:///shared/job 7#a?world_size=4&rank=3");
  EXPECT_EQ(file.store, "file:///shared/job 7#a");
  EXPECT_EQ(file.rank, 3U);
  EXPECT_EQ(job_url("etcd://node0:2379,node1/jobs/7?rank=0&world_size=1").store,
            "etcd://node0:2379,node1/jobs/7");

  EXPECT_EQ(job_url("env://").store, "");
  EXPECT_EQ(job_url("env://?rank=2").rank, 2U);
}

TEST(JobUrl, NamesTheMalformedPart) {
  const std::string ways = ": expected env://, tcp://host:port, file:///path or etcd://host:port[/prefix]";
  for (const std::string url :
       {"", "env", "env:", "redis://node0", "TCP://node0:1", "://node0:1", "tcp:/node0:1"})
    EXPECT_EQ(refusal(url), "'" + url + "'" + ways);
  EXPECT_EQ(refusal("env://node0:29500"),
            "'env://node0:29500': expected env:// without an address, which the environment states, found "
            "'node0:29500'");
  for (const std::string url :
       {"tcp://", "tcp://node0", "tcp://:29500", "tcp://node0:", "tcp://node0:http", "tcp://node0:65536",
        "tcp://node0:29500/", "tcp://fd00::1:29500", "tcp://?rank=0"})
    EXPECT_NE(refusal(url).find("is not an address"), std::string::npos) << url << ": " << refusal(url);
  EXPECT_EQ(refusal("tcp://node0:0"), "'tcp://node0:0': port 0, expected a port that all agents know");
  for (const std::string url : {"file://", "file:///", "file://job", "file:///?rank=0", "file://?rank=0"})
    EXPECT_EQ(refusal(url), "'" + url + "': expected an absolute path: file:///path");
  for (const std::string url : {"etcd://", "etcd:///jobs", "etcd://,node0"})
    EXPECT_EQ(refusal(url),
              "'" + url + "': expected the addresses of etcd: etcd://host:port[,host:port][/prefix]");
}

TEST(JobUrl, NamesTheParameterThatIsMalformed) {
  const std::string meets = "tcp://node0:29500";
  const auto of = [&](const std::string& parameters) {
    const std::string text = refusal(meets + "?" + parameters),
                      begins = "'" + meets + "?" + parameters + "': ";
    return text.starts_with(begins) ? text.substr(begins.size()) : text;
  };
  EXPECT_EQ(of(""), "'' is not a parameter, expected rank or world_size");
  EXPECT_EQ(of("rank=1&"), "'' is not a parameter, expected rank or world_size");
  EXPECT_EQ(of("Rank=1"), "'Rank' is not a parameter, expected rank or world_size");
  EXPECT_EQ(of("rank=1&use_libuv=0"), "'use_libuv' is not a parameter, expected rank or world_size");
  EXPECT_EQ(of("rank=1?world_size=2"), "rank='1?world_size=2' is not a number from 0 to 999999");
  EXPECT_EQ(of("rank"), "rank has no value");
  for (const std::string value : {"", "-1", "1x", " 1", "+1", "0x1", "1000000", "99999999999999999999"})
    EXPECT_EQ(of("rank=" + value), "rank='" + value + "' is not a number from 0 to 999999");
  for (const std::string value : {"", "0", "-4", "four", "1000001"})
    EXPECT_EQ(of("world_size=" + value), "world_size='" + value + "' is not a number from 1 to 1000000");
  EXPECT_EQ(of("rank=1&world_size=2&rank=1"), "rank is given twice");
  EXPECT_EQ(of("rank=4&world_size=4"), "rank 4 is not within a world of 4");
}

// --- With the environment ---

TEST(JobUrl, NeedsNoEnvironment) {
  const MemberOptions worker = options("tcp://10.0.0.1:29500?rank=1&world_size=4");
  EXPECT_EQ(worker.name, "worker1");
  EXPECT_EQ(worker.listen, std::vector<std::string>{"tcp://10.0.0.7:0"});
  EXPECT_EQ(worker.rendezvous.store, "tcp://10.0.0.1:29500");
  EXPECT_EQ(worker.rendezvous.rank, 1U);
  EXPECT_EQ(worker.rendezvous.world_size, 4U);
  EXPECT_TRUE(worker.rendezvous.fixed_world);
  EXPECT_EQ(options("tcp://10.0.0.1:29500?rank=0&world_size=4").listen,
            std::vector<std::string>{"tcp://10.0.0.1:29500"});
  const MemberOptions file = options("file:///shared/job7?rank=0&world_size=2");
  EXPECT_EQ(file.rendezvous.store, "file:///shared/job7");
  EXPECT_EQ(file.listen, std::vector<std::string>{"tcp://127.0.0.1:0"});
}

TEST(JobUrl, TakesPrecedenceOverTheEnvironment) {
  const Variables launched{{"RANK", "3"},
                           {"WORLD_SIZE", "8"},
                           {"MASTER_ADDR", "10.0.0.9"},
                           {"MASTER_PORT", "29500"},
                           {"WEFT_STORE", "file:///elsewhere"},
                           {"WEFT_NAME", "anna"}};
  const MemberOptions all = options("tcp://10.0.0.1:7000?rank=1&world_size=4", launched);
  EXPECT_EQ(all.rendezvous.store, "tcp://10.0.0.1:7000");
  EXPECT_EQ(all.rendezvous.rank, 1U);
  EXPECT_EQ(all.rendezvous.world_size, 4U);
  EXPECT_EQ(all.name, "anna");  // the rest is the environment's
  const MemberOptions numbers = options("env://?rank=1", launched);
  EXPECT_EQ(numbers.rendezvous.store, "file:///elsewhere");
  EXPECT_EQ(numbers.rendezvous.rank, 1U);
  EXPECT_EQ(numbers.rendezvous.world_size, 8U);
  EXPECT_EQ(options("file:///shared/job7", launched).rendezvous.rank, 3U);
  // torchrun's own store is at MASTER_PORT, and the URL names another port.
  EXPECT_EQ(options("tcp://10.0.0.1:7000?rank=1&world_size=4", {{"TORCHELASTIC_USE_AGENT_STORE", "True"}})
                .rendezvous.store,
            "tcp://10.0.0.1:7000");
}

TEST(JobUrl, TakesMissingNumbersFromABatchSystem) {
  const Variables slurm{{"SLURM_JOB_ID", "70001"},     {"SLURM_STEP_ID", "0"},
                        {"SLURM_PROCID", "3"},         {"SLURM_STEP_NUM_TASKS", "4"},
                        {"SLURM_STEP_NUM_NODES", "2"}, {"SLURM_STEP_NODELIST", "gpu[07-09]"}};
  const MemberOptions task = options("tcp://node0:7000", slurm);
  EXPECT_EQ(task.rendezvous.rank, 3U);
  EXPECT_EQ(task.rendezvous.world_size, 4U);
  EXPECT_EQ(task.rendezvous.store, "tcp://node0:7000");
  EXPECT_EQ(options("env://", slurm).rendezvous.store, "tcp://gpu07:25001");
  EXPECT_EQ(options("env://?world_size=9", slurm).rendezvous.world_size, 9U);
  EXPECT_EQ(refusal("env://?world_size=2", slurm), "Slurm's rank 3 is not within a world of 2");
}

TEST(JobUrl, AnElasticWorldNeedsNoRank) {
  const MemberOptions comes = options("tcp://10.0.0.1:7000", {{"WEFT_ELASTIC_WORLD", "1"}});
  EXPECT_EQ(comes.rendezvous.rank, Rendezvous::no_rank);
  EXPECT_FALSE(comes.rendezvous.fixed_world);
  EXPECT_EQ(comes.rendezvous.store, "tcp://10.0.0.1:7000");
}

TEST(JobUrl, NamesTheMissingNumber) {
  EXPECT_EQ(
      refusal("tcp://node0:7000?world_size=4", {}),
      "'tcp://node0:7000?world_size=4' has no rank, and the environment has no RANK: this agent's number in "
      "the job, from 0");
  EXPECT_EQ(refusal("file:///job?rank=1", {}),
            "'file:///job?rank=1' has no world_size, and the environment has no WORLD_SIZE: the number of "
            "agents in "
            "the job");
  EXPECT_EQ(refusal("file:///job?rank=4", {{"WORLD_SIZE", "4"}}),
            "'file:///job?rank=4': rank='4' is not a number from 0 to 3");
  EXPECT_EQ(refusal("file:///job?world_size=4", {{"RANK", "4"}}), "RANK='4' is not a number from 0 to 3");
  EXPECT_EQ(refusal("env://?rank=1&world_size=4", {}),
            "the environment has no MASTER_ADDR: the host of rank 0");
}

// --- A job ---

// Starts three agents with the given options. Checks that they join one job and know each other's ranks.
void meet(const std::function<MemberOptions(std::size_t rank)>& options_of) {
  std::vector<std::unique_ptr<Agent>> agents;
  for (std::size_t rank = 0; rank < 3; ++rank) agents.push_back(test::make_member(options_of(rank)));
  std::vector<Future<void>> joined;
  for (auto& agent : agents) joined.push_back(rpc::Job(*agent).wait_for(3));
  for (auto& one : joined) got(std::move(one));
  std::vector<Future<std::map<std::string, std::size_t>>> gathered;
  for (auto& agent : agents) gathered.push_back(rpc::Job(*agent).all_gather(rpc::Job(*agent).rank()));
  for (auto& one : gathered)
    EXPECT_EQ(got(std::move(one)),
              (std::map<std::string, std::size_t>{{"worker0", 0}, {"worker1", 1}, {"worker2", 2}}));
  got(agents[2]->leave());
  got(agents[1]->leave());
  rpc::Job(*agents[0]).serve_until_shutdown(test::too_long);
}

TEST(JobByUrl, JoinsByTheEnvironment) {
  const Address store = Address::parse(test::TcpJobStore().url);
  meet([&](std::size_t rank) {
    return options("env://", {{"RANK", std::to_string(rank)},
                              {"WORLD_SIZE", "3"},
                              {"MASTER_ADDR", store.host},
                              {"MASTER_PORT", store.port}});
  });
}

TEST(JobByUrl, JoinsOverTcp) {
  const test::TcpJobStore store;
  meet([&](std::size_t rank) { return from_url(store.url + "?world_size=3&rank=" + std::to_string(rank)); });
}

TEST(JobByUrl, JoinsByAFile) {
  const test::FileJobStore store;
  meet([&](std::size_t rank) { return from_url(store.url + "?world_size=3&rank=" + std::to_string(rank)); });
  EXPECT_FALSE(std::filesystem::exists(store.path));  // the last one has cleared up
}

}  // namespace
}  // namespace weft::rpc::job_url_test
