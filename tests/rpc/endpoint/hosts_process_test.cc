// Two hosts, as network namespaces with a cable between them: the cable is pulled, or loses packets, or all
// connections are reset.
#include "tests/support/cluster.h"
#include "tests/support/two_hosts.h"

namespace weft::rpc::hosts_process_test {
namespace {

using namespace std::chrono_literals;
using namespace test;

class Vault {
 public:
  std::uint64_t put(Buffer bytes) { return bytes.size(); }
  std::int64_t count(std::int64_t number) {
    if (number == next_) ++next_;
    return next_;
  }
  using Service =
      rpc::Service<"vault", Method<"put", &Vault::put>, Method<"count", &Vault::count, non_blocking>>;

 private:
  std::int64_t next_ = 0;
};

AgentOptions options(const std::string& name) {
  AgentOptions options;
  options.name = name;
  options.insecure = true;  // the other host belongs to this test
  options.log = [](const LogRecord&) {};
  return options;
}

std::string serve_vault(Heartbeat heartbeat) {
  auto with = options("vault");
  with.listen = {TwoHosts::there_address};
  with.heartbeat = heartbeat;
  auto* agent = new Agent(std::move(with));
  agent->serve(std::make_shared<Vault>());
  return agent->addresses().front();
}

class HostsTest : public testing::Test {
 protected:
  static constexpr Heartbeat heartbeat{.interval = 100ms, .timeout = 2s};

  void begin(Heartbeat timeout = heartbeat) {
    hosts_ = std::make_unique<TwoHosts>([timeout] { return serve_vault(timeout); });
    if (!hosts_->missing().empty()) GTEST_SKIP() << hosts_->missing();
    auto with = options("client");
    with.heartbeat = timeout;
    client_.emplace(std::move(with));
    vault_.emplace(client_->connect(hosts_->said()));
    ASSERT_EQ(got(vault_->call<&Vault::put>(Buffer::allocate(100'000))), 100'000U);
  }

  std::unique_ptr<TwoHosts> hosts_;
  std::optional<Agent> client_;
  std::optional<Peer> vault_;
};

TEST_F(HostsTest, APulledCableIsDetected) {
  begin();
  if (IsSkipped() || HasFatalFailure()) return;
  ASSERT_TRUE(hosts_->there("ip link set weft1 down"));
  expect_error([&] { got(vault_->call<&Vault::put>(Buffer::allocate(100'000))); }, ErrorKind::peer_lost,
               Execution::maybe_executed, "nothing was received from vault");
  ASSERT_TRUE(hosts_->there("ip link set weft1 up"));
  test::eventually("it is reached again", [&] {
    return !test::kind_of(
        [&] { got(vault_->with({.timeout = 5s}).call<&Vault::put>(Buffer::allocate(10))); });
  });
}

TEST_F(HostsTest, ALossyCableIsOnlySlow) {
  begin();
  if (IsSkipped() || HasFatalFailure()) return;
  if (!TwoHosts::here("tc qdisc add dev weft0 root netem loss 5% delay 3ms 1ms"))
    GTEST_SKIP() << "the kernel has no netem to lose and delay packets with";
  std::vector<Future<std::uint64_t>> calls;
  for (std::uint64_t i = 0; i < 50; ++i)
    calls.push_back(vault_->call<&Vault::put>(Buffer::allocate(i * 10'000)));
  for (std::uint64_t i = 0; i < 50; ++i) EXPECT_EQ(got(std::move(calls[i])), i * 10'000);
  EXPECT_EQ(client_->counts().connections_made, 1U);
}

TEST_F(HostsTest, CallsSurviveResetsOfEveryConnection) {
  begin({.interval = 1s, .timeout = 30s});
  if (IsSkipped() || HasFatalFailure()) return;
  if (!TwoHosts::reset_connections())
    GTEST_SKIP() << "`ss -K` is missing, or the kernel cannot end connections";
  std::int64_t made = 0, answered = 0;
  for (int round = 0; round < 5; ++round) {
    std::vector<Future<std::int64_t>> calls;
    for (int i = 0; i < 200; ++i) {
      calls.push_back(vault_->call<&Vault::count>(made++));
      if (i != 100) continue;
      ASSERT_TRUE(TwoHosts::reset_connections());
    }
    // The vault's count matches only if each call ran once, and in order.
    for (auto& call : calls) EXPECT_EQ(got(std::move(call)), ++answered);
  }
  EXPECT_GE(client_->counts().connections_made, 5U);
}

// A listener on all interfaces states the address of the connection, so the vault finds this host and not its
// own, where a refusal would prove nothing either.
TEST_F(HostsTest, AnAgentThatListensOnAllInterfacesIsNotLost) {
  begin({.interval = 1s, .timeout = 30s});
  if (IsSkipped() || HasFatalFailure()) return;
  if (!TwoHosts::reset_connections())
    GTEST_SKIP() << "`ss -K` is missing, or the kernel cannot end connections";
  auto with = options("guest");
  with.listen = {"tcp://0.0.0.0:0"};
  Agent guest(std::move(with));
  const Peer vault = guest.connect(hosts_->said());
  EXPECT_EQ(got(vault.call<&Vault::count>(-1)), 0);
  {
    test::HeldLoop stopped(guest);
    ASSERT_TRUE(TwoHosts::reset_connections());
    // Meanwhile the vault dials the guest several times. If it does so later, the test proves nothing.
    std::this_thread::sleep_for(300ms);
  }
  EXPECT_EQ(got(vault.call<&Vault::count>(-1)), 0);
}

}  // namespace
}  // namespace weft::rpc::hosts_process_test
