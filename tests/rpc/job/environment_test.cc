#include <weft/rpc/job/environment.h>
#include <weft/rpc/transport/address.h>

#include "tests/support/errors.h"

namespace weft::rpc::environment_test {
namespace {

using Variables = std::map<std::string, std::string>;

MemberOptions options(const Variables& variables, const std::string& local = "127.0.0.1") {
  return options_from(
      [&](const std::string& name) {
        const auto found = variables.find(name);
        return found == variables.end() ? std::nullopt : std::optional(found->second);
      },
      [&](const std::string&) { return local; });
}

std::string refusal(const Variables& variables) {
  const auto error = test::error_of([&] { return options(variables); });
  if (!error) return "accepted";
  EXPECT_EQ(error->kind(), ErrorKind::invalid_argument);
  return error->what();
}

Variables with(Variables variables, const Variables& changes) {
  for (const auto& [name, value] : changes) variables[name] = value;
  return variables;
}

const Variables usual{
    {"RANK", "1"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29500"}};

TEST(Environment, DescribesAJobOnOneHost) {
  const MemberOptions worker = options(usual);
  EXPECT_EQ(worker.name, "worker1");
  EXPECT_FALSE(worker.insecure);
  EXPECT_EQ(worker.listen, std::vector<std::string>{"tcp://127.0.0.1:0"});
  EXPECT_EQ(worker.rendezvous.rank, 1U);
  EXPECT_EQ(worker.rendezvous.world_size, 4U);
  EXPECT_EQ(worker.rendezvous.store, "tcp://127.0.0.1:29500");
  EXPECT_TRUE(worker.rendezvous.fixed_world);

  const MemberOptions host = options(with(usual, {{"RANK", "0"}}));
  EXPECT_EQ(host.name, "worker0");
  EXPECT_EQ(host.listen, std::vector<std::string>{"tcp://127.0.0.1:29500"});
}

TEST(Environment, DescribesAJobOnSeveralHosts) {
  const Variables several = with(usual, {{"MASTER_ADDR", "node0"}, {"WEFT_INSECURE", "1"}});
  const MemberOptions worker = options(several, "10.0.0.7");
  EXPECT_TRUE(worker.insecure);
  EXPECT_EQ(worker.listen, std::vector<std::string>{"tcp://10.0.0.7:0"});
  EXPECT_EQ(worker.rendezvous.store, "tcp://node0:29500");
  EXPECT_EQ(options(with(several, {{"RANK", "0"}}), "10.0.0.1").listen,
            std::vector<std::string>{"tcp://node0:29500"});
  const MemberOptions v6 = options(with(several, {{"MASTER_ADDR", "fd00::1"}}), "fd00::2");
  EXPECT_EQ(v6.rendezvous.store, "tcp://[fd00::1]:29500");
  EXPECT_EQ(v6.listen, std::vector<std::string>{"tcp://[fd00::2]:0"});
}

TEST(Environment, AHostMayBeInBrackets) {
  const Variables v6 = with(usual, {{"MASTER_ADDR", "[::1]"}});
  EXPECT_EQ(options(v6).rendezvous.store, "tcp://[::1]:29500");
  EXPECT_EQ(options(with(v6, {{"RANK", "0"}})).listen, std::vector<std::string>{"tcp://[::1]:29500"});
  EXPECT_EQ(options(with(v6, {{"RANK", "0"}, {"WEFT_HOST", "[fd00::3]"}, {"WEFT_INSECURE", "1"}})).listen,
            std::vector<std::string>{"tcp://[fd00::3]:29500"});
  EXPECT_EQ(options(with(v6, {{"WEFT_HOST", "[fd00::3]"}, {"WEFT_INSECURE", "1"}})).listen,
            std::vector<std::string>{"tcp://[fd00::3]:0"});
}

TEST(Environment, UsesTheNextPortIfTorchrunKeepsAStore) {
  const Variables torchrun = with(usual, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  EXPECT_EQ(options(torchrun).rendezvous.store, "tcp://127.0.0.1:29501");
  EXPECT_EQ(options(with(torchrun, {{"RANK", "0"}})).listen,
            std::vector<std::string>{"tcp://127.0.0.1:29501"});
  EXPECT_EQ(options(with(torchrun, {{"WEFT_STORE_PORT", "30000"}})).rendezvous.store,
            "tcp://127.0.0.1:30000");
  EXPECT_EQ(options(with(usual, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}})).rendezvous.store,
            "tcp://127.0.0.1:29500");
  EXPECT_EQ(refusal(with(torchrun, {{"MASTER_PORT", "65535"}})),
            "MASTER_PORT='65535' is not a number from 1 to 65534");
}

TEST(Environment, WeftsOwnVariablesTakePrecedence) {
  const Variables own = with(usual, {{"WEFT_NAME", "trainer"},
                                     {"WEFT_LISTEN", "tcp://127.0.0.1:4000,unix:///tmp/trainer.sock"},
                                     {"WEFT_STORE", "tcp://127.0.0.2:5000"}});
  const MemberOptions worker = options(own);
  EXPECT_EQ(worker.name, "trainer");
  EXPECT_EQ(worker.listen, (std::vector<std::string>{"tcp://127.0.0.1:4000", "unix:///tmp/trainer.sock"}));
  EXPECT_EQ(worker.rendezvous.store, "tcp://127.0.0.2:5000");
  const Variables elsewhere{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"WEFT_STORE", "tcp://127.0.0.1:5000"}};
  EXPECT_EQ(options(elsewhere).listen, std::vector<std::string>{"tcp://127.0.0.1:5000"});
}

TEST(Environment, AFileStoreNeedsNoAddress) {
  const Variables file{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"WEFT_STORE", "file:///shared/job7"}};
  EXPECT_EQ(options(file, "10.0.0.7").rendezvous.store, "file:///shared/job7");
  EXPECT_EQ(options(file, "10.0.0.7").listen, std::vector<std::string>{"tcp://127.0.0.1:0"});
  EXPECT_EQ(options(with(file, {{"MASTER_ADDR", "node0"}}), "10.0.0.7").listen,
            std::vector<std::string>{"tcp://10.0.0.7:0"});
}

TEST(Environment, NoAgentListensForAnEtcdStore) {
  for (const std::string etcd : {"etcd://node7:2380,node8/jobs/1", "etcd://node7", "etcd://[fd00::7]/j"}) {
    const Variables job{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"WEFT_STORE", etcd}};
    EXPECT_EQ(options(job, "10.0.0.7").rendezvous.store, etcd);
    EXPECT_EQ(options(job, "10.0.0.7").listen, std::vector<std::string>{"tcp://10.0.0.7:0"});
  }
}

TEST(Environment, AnAgentOfNoJobListensOnTheRoute) {
  EXPECT_EQ(agent_from_environment("127.0.0.1").listen, std::vector<std::string>{"tcp://127.0.0.1:0"});
  EXPECT_EQ(agent_from_environment("::1").listen, std::vector<std::string>{"tcp://[::1]:0"});
}

TEST(Environment, NamesMissingVariables) {
  EXPECT_EQ(refusal({}), "the environment has no WORLD_SIZE: the number of agents in the job");
  EXPECT_EQ(refusal(with(usual, {{"RANK", ""}})),
            "the environment has no RANK: this agent's number in the job, from 0");
  EXPECT_EQ(refusal(with(usual, {{"MASTER_ADDR", ""}})),
            "the environment has no MASTER_ADDR: the host of rank 0");
  EXPECT_EQ(refusal(with(usual, {{"MASTER_PORT", ""}})),
            "the environment has no MASTER_PORT: a port on the host of rank 0");
}

TEST(Environment, NamesMalformedVariables) {
  EXPECT_EQ(refusal(with(usual, {{"RANK", "4"}})), "RANK='4' is not a number from 0 to 3");
  EXPECT_EQ(refusal(with(usual, {{"RANK", "-1"}})), "RANK='-1' is not a number from 0 to 3");
  EXPECT_EQ(refusal(with(usual, {{"RANK", "1x"}})), "RANK='1x' is not a number from 0 to 3");
  EXPECT_EQ(refusal(with(usual, {{"WORLD_SIZE", "0"}})), "WORLD_SIZE='0' is not a number from 1 to 1000000");
  EXPECT_EQ(refusal(with(usual, {{"MASTER_PORT", "0"}})), "MASTER_PORT='0' is not a number from 1 to 65535");
  EXPECT_EQ(refusal(with(usual, {{"WEFT_STORE_PORT", "http"}})),
            "WEFT_STORE_PORT='http' is not a number from 1 to 65535");
  EXPECT_EQ(refusal(with(usual, {{"WEFT_INSECURE", "yes"}})), "WEFT_INSECURE='yes' is neither 0 nor 1");
  EXPECT_NE(refusal(with(usual, {{"WEFT_STORE", "redis://x"}})), "accepted");
  EXPECT_NE(refusal(with(usual, {{"WEFT_STORE", "file://x"}})), "accepted");
  EXPECT_NE(refusal(with(usual, {{"WEFT_STORE", "etcd:x"}})), "accepted");
  EXPECT_NE(refusal(with(usual, {{"WEFT_LISTEN", "127.0.0.1:4000"}})), "accepted");
}

TEST(Environment, StatesTheDetectionTime) {
  using namespace std::chrono_literals;
  const Rendezvous defaults;
  const MemberOptions fixed = options(usual);
  EXPECT_EQ(fixed.heartbeat.timeout, Heartbeat{}.timeout);
  EXPECT_EQ(fixed.rendezvous.lease, defaults.lease);
  const Variables elastic = with(usual, {{"WEFT_ELASTIC_WORLD", "1"}, {"WEFT_STORE", "file:///job"}});
  EXPECT_EQ(options(elastic).heartbeat.timeout, 5s);
  for (const Variables& variables : {usual, elastic}) {
    const MemberOptions short_time = options(with(variables, {{"WEFT_DETECTION", "0.5"}}));
    EXPECT_EQ(short_time.heartbeat.timeout, 500ms);
    EXPECT_EQ(short_time.heartbeat.interval, 100ms);
    EXPECT_EQ(short_time.rendezvous.lease, 500ms);
  }
  for (const char* const wrong : {"0", "-1", "5s", "nan", "1e9"})
    EXPECT_EQ(refusal(with(usual, {{"WEFT_DETECTION", wrong}})),
              std::string("WEFT_DETECTION='") + wrong + "', expected a number of seconds from 0.01 to 86400");
}

TEST(LocalAddress, IsTheAddressOfTheRouteToTheHost) {
  EXPECT_EQ(local_address_towards("127.0.0.1"), "127.0.0.1");
  const std::string own = local_address_towards("localhost");
  EXPECT_TRUE(own == "::1" || own.starts_with("127.")) << own;
  test::expect_error([] { local_address_towards("no-such-host.invalid"); }, ErrorKind::unavailable,
                     "no-such-host.invalid");
  for (const char* every : {"0.0.0.0", "::"}) EXPECT_TRUE(is_wildcard(every));
  for (const char* one : {"127.0.0.1", "::1", "localhost"}) EXPECT_FALSE(is_wildcard(one));
}

}  // namespace
}  // namespace weft::rpc::environment_test
