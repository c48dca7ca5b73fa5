// Two hosts, as network namespaces with a cable between them: what happens when it is pulled, or bad.
#include <weft/rpc/rpc.h>

#include <sched.h>

#include <cstdlib>

#include "tests/support/child.h"
#include "tests/support/cluster.h"
#include "tests/support/errors.h"

namespace weft::rpc::hosts_process_test {
namespace {

using namespace std::chrono_literals;
using test::Child;
using test::error_of;
using test::got;
using test::line_of;
using test::say;

class Vault {
 public:
  std::uint64_t put(Buffer bytes) { return bytes.size(); }
  using Service = rpc::Service<"vault", Method<"put", &Vault::put>>;
};

bool run(const std::string& command) { return std::system((command + " 2>/dev/null").c_str()) == 0; }

AgentOptions options(const std::string& name) {
  AgentOptions options;
  options.name = name;
  options.insecure = true;  // the other host is ours, too
  options.heartbeat = {.interval = 100ms, .patience = 2s};
  options.log = [](const LogRecord&) {};
  return options;
}

// The other host: does what it is told.
void other_host(int pipe, int orders) {
  if (::unshare(CLONE_NEWNET) != 0) return say(pipe, "no");
  say(pipe, std::to_string(::getpid()));
  line_of(orders);  // its end of the cable is there
  const bool up =
      run("ip address add 10.99.7.1/24 dev weft1") && run("ip link set weft1 up") && run("ip link set lo up");
  if (!up) return say(pipe, "no");
  auto with = options("vault");
  with.listen = {"tcp://10.99.7.1:0"};
  auto* agent = new Agent(std::move(with));
  agent->serve(std::make_shared<Vault>());
  say(pipe, agent->addresses().front());
  for (;;) say(pipe, run(line_of(orders)) ? "yes" : "no");
}

class HostsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!run("ip -V >/dev/null")) GTEST_SKIP() << "there is no `ip` here to make hosts with";
    other_ = std::make_unique<Child>(other_host);
    const std::string pid = other_->line();
    if (pid == "no" || ::unshare(CLONE_NEWNET) != 0)
      GTEST_SKIP() << "the system does not let this process make network namespaces";
    if (!run("ip link add weft0 type veth peer name weft1 netns " + pid))
      GTEST_SKIP() << "the kernel has no veth";
    ASSERT_TRUE(run("ip address add 10.99.7.2/24 dev weft0") && run("ip link set weft0 up") &&
                run("ip link set lo up"));
    other_->tell("go on");
    const std::string address = other_->line();
    ASSERT_NE(address, "no");
    client_.emplace(options("client"));
    vault_.emplace(client_->connect(address));
    ASSERT_EQ(got(vault_->call<&Vault::put>(Buffer::allocate(100'000))), 100'000U);
  }
  bool there(const std::string& command) {
    other_->tell(command);
    return other_->line() == "yes";
  }

  std::unique_ptr<Child> other_;
  std::optional<Agent> client_;
  std::optional<Peer> vault_;
};

TEST_F(HostsTest, APulledCableIsNoticed) {
  ASSERT_TRUE(there("ip link set weft1 down"));
  const auto error = error_of([&] { got(vault_->call<&Vault::put>(Buffer::allocate(100'000))); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), ErrorKind::peer_lost);
  EXPECT_EQ(error->execution(), Execution::maybe_executed);
  EXPECT_NE(std::string(error->what()).find("nothing was heard from vault"), std::string::npos)
      << error->what();
  ASSERT_TRUE(there("ip link set weft1 up"));
  test::eventually("it is reached again", [&] {
    return !test::kind_of(
        [&] { got(vault_->with({.deadline = 5s}).call<&Vault::put>(Buffer::allocate(10))); });
  });
}

TEST_F(HostsTest, ABadCableIsOnlySlow) {
  if (!run("tc qdisc add dev weft0 root netem loss 5% delay 3ms 1ms"))
    GTEST_SKIP() << "the kernel has no netem to lose and delay packets with";
  std::vector<Future<std::uint64_t>> calls;
  for (std::uint64_t i = 0; i < 50; ++i)
    calls.push_back(vault_->call<&Vault::put>(Buffer::allocate(i * 10'000)));
  for (std::uint64_t i = 0; i < 50; ++i) EXPECT_EQ(got(std::move(calls[i])), i * 10'000);
  EXPECT_EQ(client_->counts().connections_made, 1U);
}

}  // namespace
}  // namespace weft::rpc::hosts_process_test
