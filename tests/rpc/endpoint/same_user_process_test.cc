// Agents of several users on one host, who are admitted or refused by AgentOptions::same_user.
#include <weft/rpc/job/job.h>

#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>

#include "tests/support/child.h"
#include "tests/support/cluster.h"
#include "tests/support/job.h"

namespace weft::rpc::same_user_process_test {
namespace {

using namespace test;

constexpr uid_t stranger = 65533;

std::string who(CallContext& call) { return call.peer().identity; }
using Who = Function<"who", &who>;

AgentOptions options(const std::string& name, std::optional<bool> same_user) {
  AgentOptions options{.name = name, .listen = {"tcp://127.0.0.1:0"}, .same_user = same_user};
  options.same_host = false;  // over TCP
  options.handler_threads = 1;
  options.log = [](const LogRecord&) {};
  return options;
}

// The reply, or the kind and the text of the error.
std::string outcome(const std::function<std::string()>& call) {
  try {
    return call();
  } catch (const Error& error) {
    return std::string(to_string(error.kind())) + ": " + error.what();
  }
}
std::string call_of(const AgentOptions& options, const std::string& address) {
  return outcome([&] { return got(Agent(options).connect(address).call<Who>()); });
}

// A process that runs `body` as the other user. Create it before this process has threads.
Child as_stranger(std::function<void(int, int)> body) {
  return Child([body = std::move(body)](int pipe, int orders) {
    if (::setresuid(stranger, stranger, stranger) != 0) ::_exit(1);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // setresuid() has removed it
    body(pipe, orders);
  });
}

class SameUserProcesses : public testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can start a process of another user";
  }
};

TEST_F(SameUserProcesses, AnAgentRefusesCallersOfAnotherUser) {
  Child other = as_stranger([](int pipe, int orders) {
    const std::string open = line_of(orders), strict = line_of(orders);
    say(pipe, call_of(options("stranger", false), open));
    say(pipe, call_of(options("stranger", false), strict));
    say(pipe, call_of(options("stranger", true), strict));
  });
  Agent open(options("open", std::nullopt)), strict(options("strict", true));
  open.serve<Who>();
  strict.serve<Who>();
  other.tell(open.addresses().front());
  other.tell(strict.addresses().front());
  EXPECT_EQ(other.line(), "uid:65533") << "an agent without a job admits every user of the host";
  const std::string refused = other.line();
  EXPECT_TRUE(refused.starts_with("permission_denied: ")) << refused;
  EXPECT_NE(refused.find("the peer says: handshake with 'stranger': it runs as uid:65533, expected uid:0 as "
                         "'strict' (AgentOptions::same_user): run both as one user, give both credentials, "
                         "or set same_user to false"),
            std::string::npos)
      << refused;
  const std::string both = other.line();
  EXPECT_TRUE(both.starts_with("permission_denied: ")) << both;
  EXPECT_EQ(call_of(options("friend", true), strict.addresses().front()), "uid:0");
}

TEST_F(SameUserProcesses, AnAgentDoesNotCallAnotherUser) {
  Child other = as_stranger([](int pipe, int orders) {
    Agent agent(options("stranger", false));
    agent.serve<Who>();
    say(pipe, agent.addresses().front());
    line_of(orders);
  });
  const std::string address = other.line();
  EXPECT_EQ(call_of(options("open", std::nullopt), address), "uid:0");
  const std::string refused = call_of(options("strict", true), address);
  EXPECT_TRUE(refused.starts_with("permission_denied: ")) << refused;
  EXPECT_NE(refused.find("handshake with 'stranger': it runs as uid:65533, expected uid:0 as 'strict'"),
            std::string::npos)
      << refused;
  EXPECT_EQ(refused.find("the peer says"), std::string::npos) << refused;
}

MemberOptions member(const std::string& store, std::size_t rank) {
  MemberOptions member{options("worker" + std::to_string(rank), std::nullopt)};
  if (rank == 0) member.listen = {store};
  member.rendezvous = {.store = store, .rank = rank, .world_size = 2};
  return member;
}

// Also for members that the environment describes, whose options are these.
TEST_F(SameUserProcesses, AJobOnOneHostRefusesAnotherUser) {
  const test::TcpJobStore store;
  Child other = as_stranger([url = store.url](int pipe, int orders) {
    line_of(orders);
    MemberOptions stranger = member(url, 1);
    stranger.insecure = true;  // it does not refuse rank 0 itself
    say(pipe, outcome([&] {
          Job(stranger).join().get();
          return std::string("joined");
        }));
    say(pipe, call_of(options("stranger", false), url));
  });
  Job host(member(store.url, 0));
  host.agent().serve<Who>();
  auto met = host.join();
  other.tell("go on");
  for (int i = 0; i < 2; ++i) {
    const std::string refused = other.line();
    EXPECT_TRUE(refused.starts_with("permission_denied: ")) << refused;
    EXPECT_NE(refused.find("it runs as uid:65533, expected uid:0 as 'worker0'"), std::string::npos)
        << refused;
  }
  Job second(member(store.url, 1));
  auto joined = second.join();
  EXPECT_EQ(message_of([&] { return joined.get(), met.get(), 0; }), "(no error)");
  EXPECT_EQ(got(second.agent().peer("worker0").call<Who>()), "uid:0");
}

// Another user listens at the address of rank 0 first.
TEST_F(SameUserProcesses, AMemberDoesNotTrustAStoreOfAnotherUser) {
  const test::TcpJobStore store;
  Child other = as_stranger([url = store.url](int pipe, int orders) {
    MemberOptions mine = member(url, 0);
    mine.insecure = true;
    Job job(mine);
    const auto joined = job.join();
    say(pipe, "listens");
    line_of(orders);
  });
  EXPECT_EQ(other.line(), "listens");
  const std::string refused = outcome([&] {
    Job(member(store.url, 1)).join().get();
    return std::string("joined");
  });
  EXPECT_TRUE(refused.starts_with("permission_denied: ")) << refused;
  EXPECT_NE(refused.find("it runs as uid:65533, expected uid:0 as 'worker1'"), std::string::npos) << refused;
}

}  // namespace
}  // namespace weft::rpc::same_user_process_test
