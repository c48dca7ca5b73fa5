// A peer whose bytes a test writes, and an agent whose resources a test measures while the agent serves such
// peers.
#pragma once

#include <weft/rpc/testing/wait.h>
#include <weft/rpc/transport/frame_reader.h>

#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <dirent.h>
#include <malloc.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "tests/support/probe.h"

// Defined if the process runs under a sanitizer.
extern "C" {
__attribute__((weak)) std::size_t __sanitizer_get_current_allocated_bytes();
__attribute__((weak)) void __sanitizer_purge_allocator();
}

namespace weft::rpc::probe {

// --- The wire ---

[[noreturn]] inline void fail_call(const char* what) {
  throw std::runtime_error(std::string(what) + ": " + std::strerror(errno));
}

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {
    if (fd < 0) fail_call("socket");
  }
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&&) = delete;
  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }

  // buffers: the size of its send and receive buffers in bytes; 0: the system's own.
  static Socket connected(const std::string& address, int buffers = 0) {
    Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    for (const int option : {SO_SNDBUF, SO_RCVBUF})
      if (buffers != 0) ::setsockopt(socket.fd_, SOL_SOCKET, option, &buffers, sizeof buffers);
    sockaddr_in to = loopback(static_cast<std::uint16_t>(std::stoi(Address::parse(address).port)));
    if (::connect(socket.fd_, reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) fail_call("connect");
    return socket;
  }
  // receive_buffer: size in bytes for accepted connections; the system may use a larger minimum. 0: the
  // system's default.
  static Socket listening(int receive_buffer = 0) {
    Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (receive_buffer != 0)
      ::setsockopt(socket.fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    sockaddr_in at = loopback(0);
    if (::bind(socket.fd_, reinterpret_cast<sockaddr*>(&at), sizeof at) != 0 || ::listen(socket.fd_, 16) != 0)
      fail_call("listen");
    return socket;
  }
  std::string address() const {
    sockaddr_in at{};
    socklen_t size = sizeof at;
    ::getsockname(fd_, reinterpret_cast<sockaddr*>(&at), &size);
    return "tcp://127.0.0.1:" + std::to_string(ntohs(at.sin_port));
  }
  Socket accept() {
    wait();
    return Socket(::accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC));
  }

  // Sends as much as the other side accepts. Returns false if it has closed.
  bool send(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const auto n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes = bytes.subspan(static_cast<std::size_t>(n));
    }
    return true;
  }
  void end_sending() { ::shutdown(fd_, SHUT_WR); }
  // The next frame; none once the other side has closed.
  std::optional<InboundFrame> next() {
    for (;;) {
      if (auto frame = reader_.next()) return frame;
      const std::size_t n = receive(reader_.targets().front());
      if (n == 0) return std::nullopt;
      reader_.advance(n);
    }
  }
  // Returns the available bytes, as soon as there are any; 0 after the other side has closed.
  std::size_t receive(std::span<std::byte> into) {
    wait();
    const auto n = ::recv(fd_, into.data(), into.size(), 0);
    return n <= 0 ? 0 : static_cast<std::size_t>(n);
  }
  // Reads until the other side has closed. The other side sends whole frames, whatever it received.
  std::size_t frames_to_end() {
    std::size_t n = 0;
    while (next()) ++n;
    return n;
  }

 private:
  static sockaddr_in loopback(std::uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
  }
  void wait() {
    pollfd one{fd_, POLLIN, 0};
    if (::poll(&one, 1, 30'000) != 1) throw std::runtime_error("no bytes and no end within 30 s");
  }

  int fd_;
  FrameReader reader_{Limits{}};
};

// The options of an agent that listens on loopback, does not use shared memory, and logs nothing.
inline AgentOptions over_tcp(const std::string& name,
                             std::chrono::nanoseconds handshake_timeout = AgentOptions{}.handshake_timeout) {
  return {.name = name,
          .listen = {"tcp://127.0.0.1:0"},
          .same_host = false,
          .handshake_timeout = handshake_timeout,
          .log = [](const LogRecord&) {}};
}

// --- Resources of an agent ---

inline std::size_t open_files() {
  std::size_t n = 0;
  DIR* folder = ::opendir("/proc/self/fd");
  while (::readdir(folder) != nullptr) ++n;
  ::closedir(folder);
  return n;
}

inline std::size_t allocated_bytes() {
  if (__sanitizer_get_current_allocated_bytes != nullptr) {
    if (__sanitizer_purge_allocator != nullptr)
      __sanitizer_purge_allocator();  // the freed memory that ASan keeps
    return __sanitizer_get_current_allocated_bytes();
  }
  const auto info = ::mallinfo2();
  return info.uordblks + info.hblkhd;
}

// An agent that counts its connections when they end.
class Watched {
 public:
  explicit Watched(const std::string& name) {
    AgentOptions options;
    options.name = name;
    options.listen = {"tcp://127.0.0.1:0"};
    options.limits = small_limits();
    options.receive_pool = 0;  // memory kept for reuse would be counted as a leak
    options.handler_threads = 2;
    options.connect_backoff = {};  // a handshake that the test broke does not delay a later one
    options.heartbeat = {.interval = {}, .timeout = {}};  // no session waits for the return of its peer
    options.log = [this](const LogRecord& record) {
      if (record.message.find(": closed: ") == std::string_view::npos) return;
      std::lock_guard lock(mutex_);
      ++ended_;
      changed_.notify_all();
    };
    agent_.emplace(std::move(options));
  }
  Agent& operator*() { return *agent_; }
  Agent* operator->() { return &*agent_; }
  std::string address() { return agent_->addresses().front(); }

  void wait_for_ended(std::size_t connections) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, test::too_long, [&] { return ended_ >= connections; }))
      throw std::runtime_error("connections that are over stay open");
    EXPECT_EQ(ended_, connections);
  }

 private:
  std::mutex mutex_;  // guards ended_
  std::condition_variable changed_;
  std::size_t ended_ = 0;
  std::optional<Agent> agent_;
};

}  // namespace weft::rpc::probe
