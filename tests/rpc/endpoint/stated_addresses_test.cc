// The addresses that two agents state to each other in their hellos, and what a refusal at one of them
// proves.
#include <weft/rpc/endpoint/link.h>
#include <weft/rpc/endpoint/sessions.h>

#include "tests/support/cluster.h"
#include "tests/support/raw_peer.h"

namespace weft::rpc::stated_addresses_test {
namespace {

using namespace std::chrono_literals;
using namespace test;
using probe::Socket;

using Names = std::vector<std::string>;

struct Desk {
  std::int64_t note(std::int64_t number) { return number; }
  using Service = rpc::Service<"desk", Method<"note", &Desk::note, non_blocking>>;
};

class StatedAddresses : public testing::Test {
 protected:
  static AgentOptions options() {
    AgentOptions options = probe::over_tcp("node");
    options.heartbeat = {.interval = 100ms, .timeout = 1s};
    return options;
  }
  // A peer "hand", which has stated these addresses.
  static Socket connect(Agent& agent, const Names& addresses, std::uint64_t network = 0) {
    Socket socket = Socket::connected(agent.addresses().front());
    HelloInfo hello{.features = features::sessions, .name = "hand", .incarnation = 7, .addresses = addresses};
    hello.process.network = network;
    socket.send(test::bytes_of(OutgoingMessage::hello(hello)));
    socket.send(test::bytes_of(OutgoingMessage::resume({.session = 1, .epoch = 1, .is_new = true})));
    eventually("it is connected", [&] { return agent.core()->sessions().is_connected({"hand", 7}); });
    return socket;
  }
  // The end of a call to the peer after its connection was lost, if the peer states a closed port.
  static std::string end_of_call(std::uint64_t network) {
    std::string closed;
    {
      closed = Socket::listening().address();
    }
    Agent agent(options());
    std::optional<Socket> socket(connect(agent, {closed}, network));
    auto call = agent.peer("hand").call<&Desk::note>(1);
    eventually("it was sent",
               [&] { return agent.core()->sessions().find({"hand", 7})->requests_sent() == 1; });
    socket.reset();
    const auto error = test::error_of([&] { got(std::move(call)); });
    return error ? error->what() : "";
  }
};

TEST_F(StatedAddresses, AreNeverAWildcard) {
  AgentOptions with = options();
  with.listen = {"tcp://0.0.0.0:0"};
  with.insecure = true;  // during this test
  Agent agent(with);
  Socket socket = Socket::connected(agent.addresses().front());
  const auto frame = socket.next();
  ASSERT_TRUE(frame);
  const HelloInfo hello = IncomingMessage(InboundFrame(std::move(*frame)), Limits{}).hello();
  EXPECT_EQ(hello.addresses, Names{"tcp://127.0.0.1:" + Address::parse(agent.addresses().front()).port});
}

TEST_F(StatedAddresses, OfOtherHostsAreNotDialled) {
  Agent agent(options());
  const Socket own = Socket::listening();
  const Socket socket = connect(agent, {"tcp://192.0.2.1:9", "tcp://0.0.0.0:9", own.address(), "nonsense"});
  EXPECT_EQ(agent.core()->routes().addresses_of("hand"), Names{own.address()});
}

TEST_F(StatedAddresses, ARefusalInTheSameNetworkProvesTheEndOfThePeer) {
  const auto network = own_process().network;
  if (network == 0) GTEST_SKIP() << "the system does not state its network namespace";
  const std::string end = end_of_call(network);
  EXPECT_NE(end.find("no longer listens"), std::string::npos) << end;
}

TEST_F(StatedAddresses, ARefusalInAnotherNetworkProvesNothing) {
  for (const std::uint64_t network : {std::uint64_t{0}, own_process().network ^ 2}) {
    const std::string end = end_of_call(network);
    EXPECT_NE(end.find("did not connect again"), std::string::npos) << end;
  }
}

}  // namespace
}  // namespace weft::rpc::stated_addresses_test
