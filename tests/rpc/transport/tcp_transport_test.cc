#include <weft/rpc/transport/tcp_transport.h>

#include <asio/ip/tcp.hpp>

#include "tests/support/connections.h"
#include "tests/support/errors.h"

namespace weft::rpc::tcp_transport_test {
namespace {

using asio::ip::tcp;
using test::Handover;
using test::kind_of;

class TcpTransportTest : public testing::Test {
 protected:
  std::unique_ptr<Listener> listen(const std::string& address, bool allow_remote = false) {
    return transport_->listen(
        Address::parse(address), [this] { return loop_; }, {}, allow_remote,
        [](std::shared_ptr<Connection>) {});
  }
  std::shared_ptr<AsioLoop> loop_ = std::make_shared<AsioLoop>();
  std::unique_ptr<Transport> transport_ = make_tcp_transport();
};

TEST_F(TcpTransportTest, BeyondLoopbackNeedsPermission) {
  const auto error = test::error_of([&] { return listen("tcp://0.0.0.0:0"); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), ErrorKind::permission_denied);
  EXPECT_NE(std::string(error->what()).find("insecure"), std::string::npos);
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
  Handover<Result<std::shared_ptr<Connection>>> made;
  transport_->connect(Address::parse("tcp://host.invalid:1"), loop_, {},
                      [&](Result<std::shared_ptr<Connection>> result) { made.give(std::move(result)); });
  EXPECT_EQ(kind_of([&] { return made.take().get(); }), ErrorKind::unavailable);
}

// A listener that takes nobody any more leaves connects hanging: an agent's end must not wait for them.
TEST_F(TcpTransportTest, ShutDownFailsConnectsUnderWay) {
  asio::io_context io;
  tcp::acceptor full(io);
  full.open(tcp::v4());
  full.bind({asio::ip::address_v4::loopback(), 0});
  full.listen(0);
  const tcp::endpoint there = full.local_endpoint();
  std::vector<tcp::socket> waiting;  // as many as its queue takes, which is a few more than it was told
  for (int i = 0; i < 8; ++i) {
    tcp::socket& socket = waiting.emplace_back(io);
    socket.open(tcp::v4());
    socket.non_blocking(true);
    (void)::connect(socket.native_handle(), there.data(),
                    static_cast<socklen_t>(there.size()));  // Asio's waits
  }
  Handover<Result<std::shared_ptr<Connection>>> made;
  transport_->connect(Address{"tcp", "127.0.0.1", std::to_string(there.port()), {}}, loop_, {},
                      [&](Result<std::shared_ptr<Connection>> result) { made.give(std::move(result)); });
  transport_->shut_down();
  EXPECT_EQ(kind_of([&] { return made.take().get(); }), ErrorKind::unavailable);
  loop_->stop();  // returns: nothing is under way on it
}

}  // namespace
}  // namespace weft::rpc::tcp_transport_test
