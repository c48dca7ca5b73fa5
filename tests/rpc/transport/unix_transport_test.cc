#include <weft/rpc/transport/transport.h>

#include <asio/local/stream_protocol.hpp>

#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/support/connections.h"
#include "tests/support/errors.h"

namespace weft::rpc::unix_transport_test {
namespace {

using asio::local::stream_protocol;
using test::kind_of;

class UnixTransportTest : public testing::Test {
 protected:
  UnixTransportTest() {
    char name[] = "/tmp/weft-unix-XXXXXX";
    folder_ = ::mkdtemp(name);
    path_ = folder_ / "a.sock";
  }
  ~UnixTransportTest() override { std::filesystem::remove_all(folder_); }

  std::unique_ptr<Listener> listen() {
    return transport_->listen(
        Address{"unix", {}, {}, path_}, [this] { return loop_; }, {}, false,
        [](std::shared_ptr<Connection>) {});
  }
  bool somebody_answers() {
    asio::io_context io;
    stream_protocol::socket socket(io);
    asio::error_code error;
    socket.connect(stream_protocol::endpoint(path_.string()), error);
    return !error;
  }

  std::filesystem::path folder_, path_;
  std::shared_ptr<AsioLoop> loop_ = std::make_shared<AsioLoop>();
  std::unique_ptr<Transport> transport_ = make_unix_transport();
};

TEST_F(UnixTransportTest, AFullQueueIsUnavailable) {
  asio::io_context io;
  stream_protocol::acceptor full(io);
  full.open();
  full.bind(path_.string());
  full.listen(0);
  std::vector<test::Handover<std::optional<ErrorKind>>> made(4);
  for (auto& one : made)
    transport_->connect(Address{"unix", {}, {}, path_}, loop_, {},
                        [&](Result<std::shared_ptr<Connection>> result) {
                          one.give(kind_of([&] { return std::move(result).get(); }));
                        });
  EXPECT_EQ(made.front().take(), std::nullopt) << "there is room for one";
  made[1].take(), made[2].take();
  EXPECT_EQ(made.back().take(), ErrorKind::unavailable);
}

TEST_F(UnixTransportTest, TheFileIsPrivateFromItsCreation) {
  const int watch = ::inotify_init1(IN_NONBLOCK);
  ASSERT_GE(watch, 0);
  ASSERT_GE(::inotify_add_watch(watch, folder_.c_str(), IN_ATTRIB | IN_CREATE), 0);
  const mode_t old = ::umask(0);
  const auto listener = listen();
  ::umask(old);
  struct stat info{};
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600U);
  // The file was created with this mode: inotify would report a later change of the mode.
  alignas(inotify_event) char events[4096];
  const ssize_t size = ::read(watch, events, sizeof events);
  std::uint32_t seen = 0;
  for (ssize_t at = 0; at < size;) {
    const auto* event = reinterpret_cast<const inotify_event*>(events + at);
    seen |= event->mask;
    at += static_cast<ssize_t>(sizeof(inotify_event) + event->len);
  }
  EXPECT_TRUE(seen & IN_CREATE);
  EXPECT_FALSE(seen & IN_ATTRIB);
  ::close(watch);
}

TEST_F(UnixTransportTest, TheFileIsRemovedWithItsListener) {
  auto listener = listen();
  EXPECT_TRUE(std::filesystem::exists(path_));
  listener.reset();
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(UnixTransportTest, AFileWithoutAListenerIsReplaced) {
  {
    asio::io_context io;
    stream_protocol::acceptor dead(io, stream_protocol::endpoint(path_.string()));
  }  // as a process that dies: its file stays
  ASSERT_TRUE(std::filesystem::exists(path_));
  const auto listener = listen();
  EXPECT_TRUE(somebody_answers());
}

TEST_F(UnixTransportTest, ALiveListenerIsNotReplaced) {
  const auto first = listen();
  EXPECT_EQ(kind_of([&] { return listen(); }), ErrorKind::unavailable);
  EXPECT_TRUE(somebody_answers());
}

TEST_F(UnixTransportTest, AListenerThatIsTooBusyToAnswerIsNotReplaced) {
  asio::io_context io;
  stream_protocol::acceptor busy(io);
  busy.open();
  busy.bind(stream_protocol::endpoint(path_.string()));
  busy.listen(0);
  // Uses the system call, because some releases of Asio treat a full queue as an established connection.
  const stream_protocol::endpoint where(path_.string());
  std::vector<stream_protocol::socket> waiting;
  int result = 0;
  while (result == 0) {
    auto& socket = waiting.emplace_back(io);
    socket.open();
    socket.non_blocking(true);
    result = ::connect(socket.native_handle(), where.data(), static_cast<socklen_t>(where.size()));
  }
  ASSERT_EQ(errno, EAGAIN);
  EXPECT_EQ(kind_of([&] { return listen(); }), ErrorKind::unavailable);
  EXPECT_TRUE(std::filesystem::exists(path_));
}

TEST_F(UnixTransportTest, AnyOtherFileThanASocketIsKept) {
  std::ofstream(path_) << "somebody's file";
  EXPECT_EQ(kind_of([&] { return listen(); }), ErrorKind::unavailable);
  EXPECT_TRUE(std::filesystem::is_regular_file(path_));
}

TEST_F(UnixTransportTest, APathThatIsTooLongIsRefused) {
  path_ = folder_ / std::string(120, 'x');
  EXPECT_EQ(kind_of([&] { return listen(); }), ErrorKind::invalid_argument);
  EXPECT_EQ(
      kind_of([&] { return transport_->connect(Address{"unix", {}, {}, path_}, loop_, {}, nullptr), 0; }),
      ErrorKind::invalid_argument);
}

}  // namespace
}  // namespace weft::rpc::unix_transport_test
