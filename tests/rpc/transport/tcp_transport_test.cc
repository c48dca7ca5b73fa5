#include <weft/rpc/transport/transport.h>

#include "tests/support/connections.h"
#include "tests/support/errors.h"
#include "tests/support/full_backlog.h"
#include "tests/support/processor_time.h"

namespace weft::rpc::tcp_transport_test {
namespace {

using namespace test;

class TcpTransportTest : public testing::Test {
 protected:
  std::unique_ptr<Listener> listen(const std::string& address, bool allow_remote = false) {
    return transport_->listen(
        Address::parse(address), [this] { return loop_; }, {}, allow_remote,
        [](std::shared_ptr<Connection>) {});
  }
  using Made = Handover<Result<std::shared_ptr<Connection>>>;
  std::shared_ptr<Made> connect(const std::string& address, const ConnectionOptions& options) {
    auto made = std::make_shared<Made>();
    transport_->connect(
        Address::parse(address), loop_, options,
        [made](Result<std::shared_ptr<Connection>> result) { made->give(std::move(result)); });
    return made;
  }
  std::shared_ptr<AsioLoop> loop_ = std::make_shared<AsioLoop>();
  std::unique_ptr<Transport> transport_ = make_tcp_transport();
};

TEST_F(TcpTransportTest, ListeningBeyondLoopbackNeedsPermission) {
  test::expect_error([&] { return listen("tcp://0.0.0.0:0"); }, ErrorKind::permission_denied, "insecure");
  EXPECT_EQ(kind_of([&] { return listen("tcp://[::]:0"); }), ErrorKind::permission_denied);
  EXPECT_NE(listen("tcp://0.0.0.0:0", true)->address().port, "0");
  EXPECT_EQ(listen("tcp://127.0.0.2:0")->address().host, "127.0.0.2");
}

TEST_F(TcpTransportTest, AListenerKnowsItsPort) {
  const auto listener = listen("tcp://localhost:0");
  EXPECT_NE(listener->address().port, "0");
  EXPECT_EQ(kind_of([&] { return listen(listener->address().text()); }), ErrorKind::unavailable);
}

TEST_F(TcpTransportTest, AHostThatDoesNotExistIsUnavailable) {
  EXPECT_EQ(kind_of([&] { return listen("tcp://host.invalid:0", true); }), ErrorKind::unavailable);
  auto made = connect("tcp://host.invalid:1", {});
  EXPECT_EQ(kind_of([&] { return made->take().get(); }), ErrorKind::unavailable);
}

TEST_F(TcpTransportTest, ARefusalStatesWhetherItsAddressIsOfThisHost) {
  auto listener = listen("tcp://127.0.0.1:0");
  const std::string address = listener->address().text();
  listener.reset();
  try {
    connect(address, {})->take().get();
    FAIL() << "no process listens there";
  } catch (const ConnectionRefused& refused) {
    EXPECT_TRUE(refused.on_this_host());
  }
}

// A listener that accepts no connection leaves connects pending. Shutdown must not wait for them.
TEST_F(TcpTransportTest, ShutDownFailsConnectsInFlight) {
  const test::FullBacklog full;
  auto made = connect(full.address(), {});
  transport_->shut_down();
  EXPECT_EQ(kind_of([&] { return made->take().get(); }), ErrorKind::unavailable);
  loop_->stop();  // returns: no operation is pending on it
}

TEST_F(TcpTransportTest, AConnectWithoutAnAnswerTimesOut) {
  const test::FullBacklog full;
  ConnectionOptions options;
  options.connect_timeout = std::chrono::milliseconds(50);
  auto made = connect(full.address(), options);
  test::expect_error([&] { return made->take().get(); }, ErrorKind::unavailable, Execution::not_sent,
                     test::whole("cannot connect to " + full.address() +
                                 ": no answer within 0.05 s (AgentOptions::connect_timeout)"));
}

// localhost may resolve to several addresses, only one of which has a listener.
TEST_F(TcpTransportTest, EachAddressOfAHostIsTried) {
  const auto listener = listen("tcp://127.0.0.1:0");
  ConnectionOptions options;
  options.connect_timeout = std::chrono::seconds(30);
  auto made = connect("tcp://localhost:" + listener->address().port, options);
  EXPECT_EQ(kind_of([&] { return made->take().get(); }), std::nullopt);
}

// In processor time of this thread. No thread runs the loop, so all connects stay in flight.
TEST(TcpTransport, ManyConnectsTakeLinearTime) {
  const auto cost = [](int connects) {
    asio::io_context nobody;
    const auto loop = std::make_shared<AsioLoop>(nobody);
    const auto transport = make_tcp_transport();
    const Address address = Address::parse("tcp://127.0.0.1:1");
    return test::processor_time_of([&] {
      for (int i = 0; i < connects; ++i) transport->connect(address, loop, {}, [](auto&&) {});
    });
  };
  const auto few = cost(2000), many = cost(40'000);
  EXPECT_LT(many, 60 * few) << "20 times as many";
}

}  // namespace
}  // namespace weft::rpc::tcp_transport_test
