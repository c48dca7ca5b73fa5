// Streams over shared memory between processes, where death is real.
#include <weft/rpc/core/descriptor.h>

#include <asio/error.hpp>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <future>

#include "tests/support/child.h"
#include "tests/support/errors.h"
#include "tests/support/leaks.h"
#include "tests/support/pattern_streams.h"
#include "tests/support/shm.h"

namespace weft::rpc::shm_process_test {
namespace {

using test::on;

// One end of the stream, in a child or in this process.
class End {
 public:
  explicit End(int socket, const ShmOptions& options = {}) {
    stream = test::greet(socket, loop, options)->take().get();
  }
  ~End() {
    if (stream != nullptr) on(*loop, [&] { stream.reset(); });
  }

  void write(const void* data, std::size_t size) {
    std::error_code error;
    std::size_t bytes = 0;
    on(*loop, [&] {
      const std::span<const std::byte> piece(static_cast<const std::byte*>(data), size);
      bytes = stream->write(std::array{piece}, error);
    });
    if (bytes != size) throw std::runtime_error("not written: " + error.message());
  }
  // Reads all bytes. Returns the error if the stream ended before.
  std::error_code read(void* data, std::size_t size) {
    std::span<std::byte> rest(static_cast<std::byte*>(data), size);
    while (!rest.empty()) {
      std::error_code error;
      std::size_t bytes = 0;
      on(*loop, [&] { bytes = stream->read(std::array{rest}, error); });
      rest = rest.subspan(bytes);
      if (bytes != 0) continue;
      if (error != asio::error::would_block) return error;
      auto readable = std::make_shared<test::Event>();
      on(*loop, [&] { stream->when_readable([readable] { readable->set(); }); });
      readable->wait();
    }
    return {};
  }
  template <class T>
  void put(const T& value) {
    write(&value, sizeof value);
  }
  template <class T>
  T get() {
    T value{};
    if (const auto error = read(&value, sizeof value)) throw std::runtime_error(error.message());
    return value;
  }
  std::error_code pull(std::uint64_t address, std::span<std::byte> into) {
    std::error_code error;
    on(*loop, [&] { stream->bulk()->pull(address, into, error); });
    return error;
  }

  std::shared_ptr<Loop> loop = std::make_shared<AsioLoop>();
  std::unique_ptr<ByteStream> stream;
};

class ShmProcessTest : public testing::Test {
 protected:
  ShmProcessTest() {
    const int listening = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    listener_.reset(listening);
    // An abstract name, which needs no file.
    const std::string name = "weft-shm-test-" + std::to_string(::getpid());
    address_.sun_family = AF_UNIX;
    std::memcpy(address_.sun_path + 1, name.data(), name.size());
    if (::bind(listening, reinterpret_cast<sockaddr*>(&address_), sizeof address_) != 0 ||
        ::listen(listening, 5) != 0)
      throw std::system_error(errno, std::system_category(), "listen");
  }
  ~ShmProcessTest() override {
    if (child_ > 0) kill();
  }

  // This process has no other thread yet, so a child may call any function. An exception becomes the child's
  // exit status.
  template <class F>
  void start(F body) {
    child_ = ::fork();
    if (child_ != 0) return;
    test::run_as_child(body, std::chrono::seconds{50});
  }
  int connect() {
    const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (::connect(socket, reinterpret_cast<const sockaddr*>(&address_), sizeof address_) != 0)
      throw std::system_error(errno, std::system_category(), "connect");
    return socket;
  }
  int accept() { return ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC); }
  int wait() {
    int status = 0;
    ::waitpid(std::exchange(child_, 0), &status, 0);
    return status;
  }
  void kill() {
    ::kill(child_, SIGKILL);
    wait();
  }
  // Allocates memory that this process and its later children have at the same address.
  static std::span<std::byte> memory(std::size_t size) {
    void* mapped = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) throw std::bad_alloc();
    return {static_cast<std::byte*>(mapped), size};
  }
  static std::uint64_t address(const void* at) { return reinterpret_cast<std::uintptr_t>(at); }

  // Starts a child that fills `size` bytes, reports their address, and lives until it is killed.
  void start_source(std::size_t size) {
    start([this, size] {
      const auto bytes = memory(size);
      std::memset(bytes.data(), 'c', size);
      End end(connect());
      end.put(address(bytes.data()));
      end.get<int>();
      ::pause();
    });
  }

  Descriptor listener_;
  sockaddr_un address_{};
  pid_t child_ = 0;
};

TEST_F(ShmProcessTest, BytesCrossBothWays) {
  constexpr std::uint64_t total = 20'000'000;
  const auto both_ways = [](End& end, unsigned sent, unsigned received) {
    test::PatternSender sender(*end.stream, total, 100'000, sent);
    test::PatternReceiver receiver(*end.stream, 100'000, received);
    end.loop->post([&] { sender.run(); });
    end.loop->post([&] { receiver.run(); });
    sender.done.wait();
    receiver.done.wait();
    if (receiver.received != total || testing::Test::HasFailure())
      throw std::runtime_error("not what was sent");
  };
  start([&] {
    End end(connect());
    both_ways(end, 1, 2);
  });
  End end(accept());
  both_ways(end, 2, 1);
  EXPECT_EQ(wait(), 0);
}

TEST_F(ShmProcessTest, BulkIsPulledAndAcknowledged) {
  start([&] {
    const auto bytes = memory(5'000'000);
    const test::Pattern pattern(1);
    for (std::size_t at = 0; at < bytes.size(); at += 100'000)
      std::memcpy(bytes.data() + at, pattern.at(at, 100'000).data(), 100'000);
    End end(connect());
    test::Event acknowledged;
    if (end.stream->bulk() == nullptr) return end.put(std::uint64_t{0});
    on(*end.loop, [&] { end.stream->bulk()->when_acknowledged([&] { acknowledged.set(); }); });
    end.put(address(bytes.data()));
    acknowledged.wait();
    end.put(1);
  });
  End end(accept());
  const auto where = end.get<std::uint64_t>();
  if (where == 0) GTEST_SKIP() << "this system lets no process read another's memory";
  std::vector<std::byte> into(5'000'000);
  EXPECT_FALSE(end.pull(where, into));
  EXPECT_TRUE(test::Pattern(1).matches(0, into));
  on(*end.loop, [&] { end.stream->bulk()->acknowledge(); });
  EXPECT_EQ(end.get<int>(), 1);
  EXPECT_EQ(wait(), 0);
}

// The kernel reports the process that created a socket. Another process may use it.
TEST_F(ShmProcessTest, AProcessThatOnlyCreatedTheSocketIsNotRead) {
  const auto sockets = test::socket_pair();  // by this process, so that it is named at both ends
  start([&] {
    ::close(sockets[0]);
    End end(sockets[1]);
    if (end.stream->bulk() != nullptr) throw std::runtime_error("bulk without a proof");
    end.get<int>();
  });
  ::close(sockets[1]);
  End end(sockets[0]);
  EXPECT_EQ(end.stream->bulk(), nullptr);
  end.put(1);
  EXPECT_EQ(wait(), 0);
}

TEST_F(ShmProcessTest, BytesOfAKilledPeerAreReadBeforeItsLoss) {
  start_source(4096);
  End end(accept());
  char first = 0;
  EXPECT_FALSE(end.read(&first, 1));
  kill();
  std::array<char, 7> rest{};
  EXPECT_FALSE(end.read(rest.data(), rest.size()));
  EXPECT_EQ(end.read(rest.data(), 1), asio::error::connection_reset);
  for (;;) {
    std::error_code error;
    on(*end.loop, [&] { end.stream->write(std::array{std::as_bytes(std::span("x", 1))}, error); });
    ASSERT_NE(error, asio::error::would_block);
    if (error) break;
  }
}

TEST_F(ShmProcessTest, APeerThatWasKilledLeavesNothingBehind) {
  for (int i = 0; i < 3; ++i) {
    const test::Leaks before;
    {
      start_source(4096);
      End end(accept());
      end.get<std::uint64_t>();
      kill();
      char more = 0;
      EXPECT_TRUE(end.read(&more, 1));
    }
    before.expect_the_same();
  }
}

TEST_F(ShmProcessTest, APullFromAProcessThatIsKilledMeanwhileFails) {
  constexpr std::size_t size = 16U << 20;
  start_source(size);
  End end(accept());
  const auto where = end.get<std::uint64_t>();
  if (end.stream->bulk() == nullptr) GTEST_SKIP() << "this system lets no process read another's memory";
  std::vector<std::byte> into(size);
  std::promise<void> pulling;
  std::thread killer([&] {
    pulling.get_future().wait();
    ::kill(child_, SIGKILL);
  });
  // Pulls follow each other without a pause, so that the death occurs during one of them. The bytes of
  // completed pulls are correct.
  std::error_code error;
  for (int i = 0; !error; ++i) {
    if (i == 1) pulling.set_value();
    std::memset(into.data(), 0, into.size());
    error = end.pull(where, into);
    if (!error) {
      ASSERT_EQ(std::count(into.begin(), into.end(), std::byte{'c'}), std::ptrdiff_t{size});
    }
  }
  killer.join();
  EXPECT_TRUE(end.pull(where, into));
  wait();
  EXPECT_TRUE(end.pull(where, into));
  char more = 0;
  EXPECT_TRUE(end.read(&more, 1));
}

TEST_F(ShmProcessTest, AnotherProcessWithTheSamePidIsNotRead) {
  const auto bytes = memory(4096);  // at the same address in both processes
  start([&] {
    std::memset(bytes.data(), 'c', bytes.size());
    End end(connect());
    end.put(1);
    ::pause();
  });
  const pid_t pid = child_;
  std::vector<std::byte> into(bytes.size());
  std::optional<End> end(std::in_place, accept());
  end->get<int>();
  if (end->stream->bulk() == nullptr) GTEST_SKIP() << "this system lets no process read another's memory";
  ASSERT_FALSE(end->pull(address(bytes.data()), into));
  kill();
  // Sets the number of the next process, for which the process must be privileged.
  pid_t same = 0;
  std::array<int, 2> ready{};
  ASSERT_EQ(::pipe(ready.data()), 0);
  for (int attempt = 0; attempt < 50 && same != pid; ++attempt) {
    if (std::ofstream("/proc/sys/kernel/ns_last_pid") << pid - 1 << std::flush; false) break;
    same = ::fork();
    if (same == 0) {
      (void)!::write(ready[1], "r", 1);
      ::pause();
      ::_exit(0);
    }
    char one = 0;
    (void)!::read(ready[0], &one, 1);
    if (same != pid) {
      ::kill(same, SIGKILL);
      ::waitpid(same, nullptr, 0);
    }
  }
  ::close(ready[0]);
  ::close(ready[1]);
  if (same != pid) GTEST_SKIP() << "this process may not choose the next pid";
  EXPECT_TRUE(end->pull(address(bytes.data()), into));
  ::kill(same, SIGKILL);
  ::waitpid(same, nullptr, 0);
}

TEST_F(ShmProcessTest, AStoppedPeerBlocksNoOtherPeer) {
  start([&] {
    End end(connect());
    const auto bytes = memory(1U << 20);
    end.put(address(bytes.data()));
    test::PatternReceiver receiver(*end.stream, 100'000, 1);
    end.loop->post([&] { receiver.run(); });
    receiver.done.wait();
    end.put(receiver.received);
  });
  End end(accept());
  const auto where = end.get<std::uint64_t>();
  ::kill(child_, SIGSTOP);
  ASSERT_EQ(::waitpid(child_, nullptr, WUNTRACED), child_);
  if (end.stream->bulk() != nullptr) {
    std::vector<std::byte> into(1U << 20, std::byte{1});
    EXPECT_FALSE(end.pull(where, into));  // its memory is there
  }
  constexpr std::uint64_t total = 5'000'000;
  test::PatternSender sender(*end.stream, total, 100'000, 1);
  on(*end.loop, [&] { sender.run(); });  // returns although the peer does not read
  ::kill(child_, SIGCONT);
  sender.done.wait();
  EXPECT_EQ(end.get<std::uint64_t>(), total);
  EXPECT_EQ(wait(), 0);
}

TEST_F(ShmProcessTest, AnotherUserIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be somebody else";
  start([&] {
    constexpr uid_t nobody = 65534;
    if (::setresuid(nobody, nobody, nobody) != 0) throw std::runtime_error("setresuid");
    const auto loop = std::make_shared<AsioLoop>();
    const auto made = test::greet(connect(), loop)->take();
    if (made) throw std::runtime_error("served by another user");
  });
  const auto loop = std::make_shared<AsioLoop>();
  const auto made = test::greet(accept(), loop);
  EXPECT_EQ(test::kind_of([&] { made->take().get(); }), ErrorKind::permission_denied);
  EXPECT_EQ(wait(), 0);
}

}  // namespace
}  // namespace weft::rpc::shm_process_test
