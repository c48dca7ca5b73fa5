// The floor: the same bytes over the same kind of socket in a bare loop of blocking system calls.
#include "bench/rpc/work.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace weft::bench {
namespace {

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }
int checked(int result, const char* what) {
  if (result < 0) fail(what);
  return result;
}

class Socket {
 public:
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  ~Socket() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  int descriptor() const { return descriptor_; }

  void write(const void* data, std::size_t size) const {
    iovec part{const_cast<void*>(data), size};
    write(&part, 1);
  }
  void write(iovec* parts, std::size_t count) const {
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
  std::size_t read_some(void* data, std::size_t size) const {  // 0: the other side has closed
    const ssize_t n = recv(descriptor_, data, size, 0);
    if (n < 0 && errno != ECONNRESET) fail("recv");
    return n < 0 ? 0 : static_cast<std::size_t>(n);
  }
  bool read(void* data, std::size_t size) const {
    for (auto* at = static_cast<char*>(data); size != 0;) {
      const std::size_t n = read_some(at, size);
      if (n == 0) return false;
      at += n;
      size -= n;
    }
    return true;
  }

 private:
  int descriptor_;
};

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
  if (wire == Wire::unix_socket) unlink(text.c_str());
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

// --- Servers: until the client closes. ---

void answer_calls(const Socket& socket) {
  char request[request_bytes];
  const char reply[reply_bytes]{};
  while (socket.read(request, sizeof request)) socket.write(reply, sizeof reply);
}

// However many requests have come, their replies leave in one write.
void answer_batches(const Socket& socket) {
  std::vector<char> requests(in_flight * request_bytes), replies(in_flight * reply_bytes);
  std::size_t pending = 0;
  while (const std::size_t n = socket.read_some(requests.data(), requests.size())) {
    pending += n;
    socket.write(replies.data(), pending / request_bytes * reply_bytes);
    pending %= request_bytes;
  }
}

class Memory {  // that nobody has touched, or that is touched once and for all
 public:
  explicit Memory(std::size_t size) : size_(size) {
    data_ = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data_ == MAP_FAILED) fail("mmap");
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { munmap(data_, size_); }
  void* data() const { return data_; }

 private:
  void* data_;
  std::size_t size_;
};

void take_bulk(const Socket& socket, std::size_t bytes, bool fresh) {
  char request[request_bytes];
  const char reply[reply_bytes]{};
  const Memory reused(bytes);
  while (socket.read(request, sizeof request)) {
    if (fresh) {
      const Memory memory(bytes);
      if (!socket.read(memory.data(), bytes)) return;
    } else if (!socket.read(reused.data(), bytes)) {
      return;
    }
    socket.write(reply, sizeof reply);
  }
}

void serve(const Work& work, bool fresh, ServerEnd& end) {
  {
    const Socket socket = accept_one(work.wire, end);
    switch (work.kind) {
      case Kind::throughput:
        answer_batches(socket);
        break;
      case Kind::bulk:
        take_bulk(socket, work.bytes, fresh);
        break;
      default:
        answer_calls(socket);
    }
  }
  end.wait_for_client();
}

// --- Clients. ---

void need(bool alive) {
  if (!alive) throw std::runtime_error("the server closed the connection");
}

Figures call_one_by_one(const Socket& socket, const Budget& budget) {
  LatencyMeter meter(budget);
  const char request[request_bytes]{};
  char reply[reply_bytes];
  do {
    meter.begin();
    socket.write(request, sizeof request);
    need(socket.read(reply, sizeof reply));
  } while (meter.end());
  return meter.figures();
}

Figures call_in_batches(const Socket& socket, const Budget& budget) {
  RateMeter meter(budget);
  std::vector<char> requests(in_flight * request_bytes), replies(in_flight * reply_bytes);
  do {
    socket.write(requests.data(), requests.size());
    need(socket.read(replies.data(), replies.size()));
  } while (meter.count(in_flight));
  return meter.calls();
}

Figures send_bulk(const Socket& socket, const Budget& budget, std::size_t bytes) {
  RateMeter meter(budget);
  std::vector<char> payload(bytes, 1);
  char request[request_bytes]{}, reply[reply_bytes];
  do {
    iovec parts[] = {{request, sizeof request}, {payload.data(), payload.size()}};
    socket.write(parts, 2);
    need(socket.read(reply, sizeof reply));
  } while (meter.count(1));
  return meter.bandwidth(bytes);
}

void measure(const Work& work, ClientEnd& end) {
  const Socket socket = connect_to(work.wire, end.address());
  switch (work.kind) {
    case Kind::throughput:
      return end.report(call_in_batches(socket, end.budget()));
    case Kind::bulk:
      return end.report(send_bulk(socket, end.budget(), work.bytes));
    default:
      return end.report(call_one_by_one(socket, end.budget()));
  }
}

Contender make(const std::string& peer, const Work& work, bool fresh) {
  return contender(peer, {{"wait", "blocking"}, {"caller", "main"}},
                   {.serve = [=](ServerEnd& end) { serve(work, fresh, end); },
                    .measure = [=](ClientEnd& end) { measure(work, end); }});
}

}  // namespace

std::optional<Contender> raw_peer(const Work& work) { return make("raw", work, false); }

std::optional<Contender> raw_fresh_peer(const Work& work) {
  if (work.kind != Kind::bulk) return std::nullopt;
  return make("raw-fresh", work, true);
}

}  // namespace weft::bench
