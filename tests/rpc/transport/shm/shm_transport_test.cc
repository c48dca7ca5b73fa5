#include <weft/rpc/transport/shm/shm_transport.h>

#include <asio/local/stream_protocol.hpp>
#include <asio/read.hpp>

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "tests/support/errors.h"
#include "tests/support/leaks.h"
#include "tests/support/shm.h"

namespace weft::rpc::shm_transport_test {
namespace {

using asio::local::stream_protocol;
using namespace test;

class ShmTransportTest : public testing::Test {
 protected:
  using Made = Result<std::shared_ptr<Connection>>;

  ShmTransportTest() {
    char name[] = "/tmp/weft-shm-XXXXXX";
    folder_ = ::mkdtemp(name);
    path_ = folder_ / "a.sock";
  }
  ~ShmTransportTest() override { std::filesystem::remove_all(folder_); }

  std::unique_ptr<Listener> listen() {
    return transport_->listen(
        {"shm", {}, {}, path_}, [this] { return theirs_; }, {}, false,
        [this](std::shared_ptr<Connection> connection) {
          EXPECT_TRUE(theirs_->running_here());
          accepted_.give(std::move(connection));
        });
  }
  void connect() {
    transport_->connect({"shm", {}, {}, path_}, ours_, {}, [this](Made made) {
      EXPECT_TRUE(ours_->running_here());
      made_.give(std::move(made));
    });
  }
  // A connection is released on its loop, as all its operations run there.
  static std::shared_ptr<Connection> kept(std::shared_ptr<Connection> connection) {
    Connection* const alias = connection.get();
    return {alias, [connection = std::move(connection)](Connection*) mutable {
              const auto loop = connection->loop();
              loop->post([last = std::move(connection)] {});
            }};
  }
  std::shared_ptr<Connection> here() { return kept(made_.take().get()); }
  std::shared_ptr<Connection> there() { return kept(accepted_.take()); }
  std::string refusal() {
    return message_of([&] { made_.take().get(); });
  }
  void settle() {
    for (const auto& loop : {ours_, theirs_}) test::on(*loop, [] {});
  }

  std::filesystem::path folder_, path_;
  std::shared_ptr<AsioLoop> ours_ = std::make_shared<AsioLoop>(), theirs_ = std::make_shared<AsioLoop>();
  std::shared_ptr<Transport> transport_ = make_shm_transport();
  test::Handover<Made> made_;
  test::Handover<std::shared_ptr<Connection>> accepted_;
};

TEST_F(ShmTransportTest, IsSupportedHere) {
  std::string why_not;
  EXPECT_TRUE(test::shm_supported(&why_not)) << why_not;
  EXPECT_TRUE(test::shm_supported());
  EXPECT_EQ(transport_->scheme(), "shm");
}

TEST_F(ShmTransportTest, ConnectsBothSides) {
  const auto listener = listen();
  EXPECT_EQ(listener->address().text(), "shm://" + path_.string());
  connect();
  const auto ours = here(), other = there();
  EXPECT_EQ(ours->describe(), "shm -> " + path_.string());
  EXPECT_EQ(other->describe(), "shm <- " + path_.string());
  EXPECT_EQ(other->loop(), theirs_);
  EXPECT_EQ(other->identity(), "uid:" + std::to_string(::geteuid()));
}

TEST_F(ShmTransportTest, TheFileIsPrivateAndRemovedWithTheListener) {
  const mode_t old = ::umask(0);
  auto listener = listen();
  ::umask(old);
  struct stat info{};
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600U);
  listener->close();
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(ShmTransportTest, AStaleFileIsReplacedButALiveListenerIsNot) {
  {
    asio::io_context io;
    stream_protocol::acceptor left(io, stream_protocol::endpoint(path_.string()));
  }
  ASSERT_TRUE(std::filesystem::exists(path_));
  const auto listener = listen();
  EXPECT_EQ(kind_of([&] { listen(); }), ErrorKind::unavailable);
  connect();
  here();
  there();
}

TEST_F(ShmTransportTest, AConnectWithoutAListenerIsUnavailable) {
  connect();
  test::expect_error([&] { made_.take().get(); }, ErrorKind::unavailable, Execution::not_sent,
                     "cannot connect to shm://" + path_.string());
}

TEST_F(ShmTransportTest, AConnectToAnotherKindOfListenerFails) {
  asio::io_context io;
  stream_protocol::acceptor other(io, stream_protocol::endpoint(path_.string()));
  connect();
  auto socket = other.accept();
  socket.close();
  EXPECT_NE(refusal().find("ended the handshake"), std::string::npos);
  connect();
  socket = other.accept();
  socket.send(asio::buffer(std::string(100, 'x')));
  EXPECT_NE(refusal().find("not weft's shared memory"), std::string::npos);
}

TEST_F(ShmTransportTest, APathThatIsTooLongIsInvalid) {
  path_ = std::string(200, 'x');
  EXPECT_EQ(kind_of([&] { connect(); }), ErrorKind::invalid_argument);
  EXPECT_EQ(kind_of([&] { listen(); }), ErrorKind::invalid_argument);
}

TEST_F(ShmTransportTest, ShutDownFailsConnectsInFlight) {
  asio::io_context io;
  stream_protocol::acceptor silent(io, stream_protocol::endpoint(path_.string()));
  connect();
  const auto socket = silent.accept();
  transport_->shut_down();
  EXPECT_EQ(kind_of([&] { made_.take().get(); }), ErrorKind::shut_down);
}

// The loops wait for handshakes in flight. Without this, they would wait for a peer that sends nothing.
TEST_F(ShmTransportTest, CloseOfTheListenerFailsHandshakesInFlight) {
  auto listener = listen();
  asio::io_context io;
  stream_protocol::socket silent(io);
  silent.connect(stream_protocol::endpoint(path_.string()));
  std::array<char, 64> hello;
  asio::read(silent, asio::buffer(hello));  // the handshake has begun
  listener->close();
  theirs_->stop();
  asio::error_code error;
  EXPECT_EQ(silent.read_some(asio::buffer(hello), error), 0U);
  EXPECT_TRUE(error);
  EXPECT_FALSE(accepted_.given());
}

TEST_F(ShmTransportTest, LeavesNothingBehind) {
  const test::Leaks before;
  for (int i = 0; i < 20; ++i) {
    const auto listener = listen();
    connect();
    auto ours = here(), other = there();
    if (i % 2 == 0) std::swap(ours, other);
  }
  settle();
  settle();
  before.expect_the_same();
}

}  // namespace
}  // namespace weft::rpc::shm_transport_test
