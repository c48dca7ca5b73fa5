#include <weft/rpc/transport/internal/socket_user.h>

#include <gtest/gtest.h>

#include <asio/io_context.hpp>
#include <asio/ip/v6_only.hpp>
#include <asio/write.hpp>

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <bit>

namespace weft::rpc::socket_user_test {
namespace {

using asio::ip::tcp;

tcp::endpoint at(const std::string& host, std::uint16_t port) { return {asio::ip::make_address(host), port}; }

// The two ends of a connection.
class SocketUserTest : public testing::Test {
 protected:
  bool connect(const std::string& listen, const std::string& dial) {
    asio::error_code error;
    tcp::acceptor acceptor(context_);
    const tcp::endpoint where = at(listen, 0);
    acceptor.open(where.protocol(), error);
    if (error) return false;
    if (where.protocol() == tcp::v6()) acceptor.set_option(asio::ip::v6_only(false), error);
    acceptor.bind(where, error);
    if (error) return false;
    acceptor.listen();
    dialled_.connect(at(dial, acceptor.local_endpoint().port()));
    acceptor.accept(accepted_);
    return true;
  }
  asio::io_context context_;
  tcp::socket dialled_{context_}, accepted_{context_};
  const std::string own_ = "uid:" + std::to_string(::geteuid());
};

TEST_F(SocketUserTest, BothEndsOfALoopbackConnectionKnowTheUser) {
  for (const auto& [listen, dial] : {std::pair{"127.0.0.1", "127.0.0.1"}, std::pair{"127.0.0.2", "127.0.0.2"},
                                     std::pair{"::1", "::1"}, std::pair{"::", "127.0.0.1"}}) {
    if (!connect(listen, dial)) {
      EXPECT_NE(std::string(listen).find(':'), std::string::npos) << listen;
      continue;  // this machine has no IPv6
    }
    EXPECT_EQ(identity_of(dialled_), own_) << listen;
    EXPECT_EQ(identity_of(accepted_), own_) << listen;
    dialled_.close();
    accepted_.close();
  }
}

// A kernel may report user 0 for a socket that no process has, which must not pass for root.
TEST_F(SocketUserTest, ASocketThatWasClosedHasNoUser) {
  ASSERT_TRUE(connect("127.0.0.1", "127.0.0.1"));
  asio::write(dialled_, asio::buffer("hello"));
  dialled_.close();
  EXPECT_EQ(identity_of(accepted_), "");
}

TEST_F(SocketUserTest, AnEndThatOnlyReadsHasAUser) {
  ASSERT_TRUE(connect("127.0.0.1", "127.0.0.1"));
  dialled_.shutdown(tcp::socket::shutdown_send);
  EXPECT_EQ(identity_of(accepted_), own_);
  EXPECT_EQ(identity_of(dialled_), own_);
}

TEST_F(SocketUserTest, AConnectionThatWasResetHasNoUser) {
  ASSERT_TRUE(connect("127.0.0.1", "127.0.0.1"));
  dialled_.set_option(asio::socket_base::linger(true, 0));
  dialled_.close();
  EXPECT_EQ(identity_of(accepted_), "");
  EXPECT_EQ(identity_of(dialled_), "");
}

TEST_F(SocketUserTest, AListenerThatHasNotAcceptedIsNoUser) {
  tcp::acceptor acceptor(context_, at("127.0.0.1", 0));
  dialled_.connect(acceptor.local_endpoint());
  // No process has the socket of the other end yet, whichever user the kernel reports.
  EXPECT_EQ(identity_of(dialled_), "");
}

constexpr std::string_view header =
    "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";

TEST(UserInTable, ReadsTheRowOfTheSocket) {
  if (std::endian::native != std::endian::little) GTEST_SKIP() << "the table has another order of bytes here";
  const std::string table =
      std::string(header) +
      "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1001        0 71 1 0\n"
      "   1: 0100007F:1F90 0100007F:9C40 01 00000000:00000000 00:00000000 00000000  1002        0 72 1 0\n"
      "   2: 0100007F:9C40 0100007F:1F90 08 00000000:00000000 00:00000000 00000000  1003        0 73 1 0\n"
      "   3: 0100007F:1F90 0100007F:9C41 06 00000000:00000000 03:00001770 00000000     0        0 0 3 0\n"
      "   4: 0100007F:1F90 0100007F:9C42 05 00000000:00000000 02:00000010 00000000     0        0 0 3 0\n"
      "   5: 0100007F:1F90 0100007F:9C43 02 00000000:00000000 01:00000010 00000000  1004        0 74 3 0\n";
  const auto user = [&](const std::string& host, std::uint16_t own, std::uint16_t other) {
    return user_in_table(table, at(host, own), at(host, other));
  };
  EXPECT_EQ(user("127.0.0.1", 8080, 40000), 1002U);
  EXPECT_EQ(user("127.0.0.1", 40000, 8080), 1003U);
  EXPECT_EQ(user("127.0.0.1", 8080, 0), std::nullopt) << "a listener";
  EXPECT_EQ(user("127.0.0.1", 8080, 40001), std::nullopt) << "TIME_WAIT";
  EXPECT_EQ(user("127.0.0.1", 8080, 40002), std::nullopt) << "no process has it";
  EXPECT_EQ(user("127.0.0.1", 8080, 40003), std::nullopt) << "not connected yet";
  EXPECT_EQ(user("127.0.0.1", 8080, 40004), std::nullopt) << "no row";
  EXPECT_EQ(user("127.0.0.2", 8080, 40000), std::nullopt) << "another address";
  EXPECT_EQ(user("::1", 8080, 40000), std::nullopt) << "not in this table";
  EXPECT_EQ(user_in_table("", at("127.0.0.1", 1), at("127.0.0.1", 2)), std::nullopt);
  EXPECT_EQ(
      user_in_table(table.substr(0, table.find(" 1002")), at("127.0.0.1", 8080), at("127.0.0.1", 40000)),
      std::nullopt)
      << "cut off";
}

// An IPv6 socket may have accepted a connection of an IPv4 socket.
TEST(UserInTable, ReadsIpv6AndMappedAddresses) {
  if (std::endian::native != std::endian::little) GTEST_SKIP() << "the table has another order of bytes here";
  const std::string table =
      std::string(header) +
      "   0: 00000000000000000000000001000000:1F90 00000000000000000000000001000000:9C40 01 "
      "00000000:00000000 00:00000000 00000000  1001        0 71 1 0\n"
      "   1: 0000000000000000FFFF00000100007F:1F90 0000000000000000FFFF00000100007F:9C40 01 "
      "00000000:00000000 00:00000000 00000000 65534        0 72 1 0\n";
  EXPECT_EQ(user_in_table(table, at("::1", 8080), at("::1", 40000)), 1001U);
  EXPECT_EQ(user_in_table(table, at("127.0.0.1", 8080), at("127.0.0.1", 40000)), 65534U);
}

// The format of this kernel.
TEST_F(SocketUserTest, TheTableOfTheKernelIsRead) {
  ASSERT_TRUE(connect("127.0.0.1", "127.0.0.1"));
  const int file = ::open("/proc/net/tcp", O_RDONLY | O_CLOEXEC);
  if (file < 0) GTEST_SKIP() << "the system has no /proc/net/tcp";
  std::string table;
  char part[4096];
  for (ssize_t bytes; (bytes = ::read(file, part, sizeof part)) > 0;)
    table.append(part, static_cast<std::size_t>(bytes));
  ::close(file);
  EXPECT_EQ(user_in_table(table, dialled_.local_endpoint(), dialled_.remote_endpoint()), ::geteuid());
  EXPECT_EQ(user_in_table(table, accepted_.local_endpoint(), accepted_.remote_endpoint()), ::geteuid());
}

// A connection whose user the process cannot ask for is not refused for good.
TEST_F(SocketUserTest, TheQuestionNeedsADescriptor) {
  ASSERT_TRUE(connect("127.0.0.1", "127.0.0.1"));
  const int next = ::dup(0);
  ASSERT_GE(next, 0);
  ::close(next);
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none{static_cast<rlim_t>(next), limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const bool can = can_ask_for_users();
  const std::string identity = identity_of(accepted_);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_FALSE(can);
  EXPECT_EQ(identity, "");
  EXPECT_TRUE(can_ask_for_users());
}

}  // namespace
}  // namespace weft::rpc::socket_user_test
