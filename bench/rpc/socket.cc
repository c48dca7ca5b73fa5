#include "bench/rpc/socket.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

namespace weft::bench {
namespace {

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

Socket make_socket(Wire wire) {
  return Socket(
      checked(socket(wire == Wire::tcp ? AF_INET : AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket"));
}

void set_no_delay(Wire wire, const Socket& socket) {
  const int on = 1;
  if (wire == Wire::tcp)
    checked(setsockopt(socket.descriptor(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on), "no delay");
}

// Calls `use` with the sockaddr of an address as text: a port or a path.
template <class Use>
void with_address(Wire wire, const std::string& text, Use use) {
  if (wire == Wire::tcp) {
    sockaddr_in where{};
    where.sin_family = AF_INET;
    where.sin_port = htons(static_cast<std::uint16_t>(std::stoi(text)));
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    use(reinterpret_cast<sockaddr*>(&where), socklen_t{sizeof where});
  } else {
    sockaddr_un where{};
    where.sun_family = AF_UNIX;
    std::strncpy(where.sun_path, text.c_str(), sizeof where.sun_path - 1);
    use(reinterpret_cast<sockaddr*>(&where), socklen_t{sizeof where});
  }
}

}  // namespace

int checked(long result, const char* what) {
  if (result < 0) fail(what);
  return static_cast<int>(result);
}

Socket::~Socket() {
  if (descriptor_ >= 0) close(descriptor_);
}

void Socket::write(const void* data, std::size_t size) const {
  iovec part{const_cast<void*>(data), size};
  write(&part, 1);
}

void Socket::write(iovec* parts, std::size_t count) const {
  while (count != 0) {
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = count;
    ssize_t n = sendmsg(descriptor_, &message, MSG_NOSIGNAL);
    if (n < 0) fail("send");
    for (; count != 0 && static_cast<std::size_t>(n) >= parts->iov_len; ++parts, --count)
      n -= static_cast<ssize_t>(parts->iov_len);
    if (count != 0)
      *parts = {static_cast<char*>(parts->iov_base) + n, parts->iov_len - static_cast<std::size_t>(n)};
  }
}

std::size_t Socket::read_some(void* data, std::size_t size) const {
  while (true) {
    const ssize_t n = recv(descriptor_, data, size, wait_ == Wait::spinning ? MSG_DONTWAIT : 0);
    if (n >= 0) return static_cast<std::size_t>(n);
    if (errno == ECONNRESET) return 0;
    if (errno != EAGAIN) fail("recv");
  }
}

bool Socket::read(void* data, std::size_t size) const {
  for (auto* at = static_cast<char*>(data); size != 0;) {
    const std::size_t n = read_some(at, size);
    if (n == 0) return false;
    at += n;
    size -= n;
  }
  return true;
}

Socket accept_one(Wire wire, ServerEnd& end) {
  const Socket listener = make_socket(wire);
  std::string text = wire == Wire::tcp ? "0" : scratch_path(".sock");
  with_address(wire, text, [&](sockaddr* where, socklen_t size) {
    checked(bind(listener.descriptor(), where, size), "bind");
    if (wire != Wire::tcp) return;
    checked(getsockname(listener.descriptor(), where, &size), "getsockname");
    text = std::to_string(ntohs(reinterpret_cast<sockaddr_in*>(where)->sin_port));
  });
  checked(listen(listener.descriptor(), 1), "listen");
  end.announce(text);
  Socket socket(checked(accept(listener.descriptor(), nullptr, nullptr), "accept"));
  if (wire != Wire::tcp) unlink(text.c_str());
  set_no_delay(wire, socket);
  return socket;
}

Socket connect_to(Wire wire, const std::string& text) {
  Socket socket = make_socket(wire);
  with_address(wire, text, [&](sockaddr* where, socklen_t size) {
    checked(connect(socket.descriptor(), where, size), "connect");
  });
  set_no_delay(wire, socket);
  return socket;
}

Memory::Memory(std::size_t size, Kind kind) : size_(size) {
  if (size == 0) size_ = 1;
  data_ = mmap(nullptr, size_, PROT_READ | PROT_WRITE,
               MAP_ANONYMOUS | (kind == Kind::shared ? MAP_SHARED : MAP_PRIVATE), -1, 0);
  if (data_ == MAP_FAILED) fail("mmap");
}

Memory::~Memory() { munmap(data_, size_); }

}  // namespace weft::bench
