// The lower bound over TCP: two processes exchange the number of bytes that a ring all_reduce of two ranks
// sends. They send in both directions at the same time over one connection, and do no arithmetic.
#include "bench/collectives/work.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <future>
#include <system_error>

namespace weft::bench {
namespace {

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

// Both ends of a TCP connection, over the loopback or between two hosts.
std::pair<int, int> connected_pair(const Hosts* hosts) {
  if (hosts != nullptr) hosts->enter(1);
  const int one = socket(AF_INET, SOCK_STREAM, 0);
  if (hosts != nullptr) hosts->enter(0);
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_addr.s_addr = inet_addr(hosts != nullptr ? Hosts::address(0).c_str() : "127.0.0.1");
  socklen_t size = sizeof where;
  auto* const address = reinterpret_cast<sockaddr*>(&where);
  if (listener < 0 || one < 0 || bind(listener, address, size) != 0 || listen(listener, 1) != 0 ||
      getsockname(listener, address, &size) != 0 || connect(one, address, size) != 0)
    fail("a connection");
  const int other = accept(listener, nullptr, nullptr);
  if (other < 0) fail("accept");
  close(listener);
  const int on = 1;
  for (const int end : {one, other}) setsockopt(end, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return {one, other};
}

// Sends and receives the same number of bytes at the same time.
void exchange(int socket, std::byte* out, std::byte* in, std::size_t bytes) {
  for (std::size_t sent = 0, received = 0; sent < bytes || received < bytes;) {
    pollfd ready{socket, static_cast<short>((sent < bytes ? POLLOUT : 0) | (received < bytes ? POLLIN : 0)),
                 0};
    if (poll(&ready, 1, -1) < 0) fail("poll");
    if ((ready.revents & POLLIN) != 0) {
      const ssize_t count = recv(socket, in + received, bytes - received, MSG_DONTWAIT);
      if (count == 0 || (count < 0 && errno != EAGAIN)) fail("recv");
      received += count > 0 ? static_cast<std::size_t>(count) : 0;
    }
    if ((ready.revents & POLLOUT) != 0) {
      const ssize_t count = send(socket, out + sent, bytes - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (count < 0 && errno != EAGAIN) fail("send");
      sent += count > 0 ? static_cast<std::size_t>(count) : 0;
    }
  }
}

void run(const Work& work, int socket, RankEnd& end) {
  std::vector<std::byte> out(work.bytes), in(work.bytes);
  const auto half = work.bytes / 2;
  measure_rounds(
      end, work,
      [&] {  // exchanges the halves, then the sums of the halves
        exchange(socket, out.data(), in.data(), half);
        exchange(socket, out.data() + half, in.data() + half, work.bytes - half);
      },
      [&](std::size_t next) {
        std::uint64_t theirs = 0, own = next;
        exchange(socket, reinterpret_cast<std::byte*>(&own), reinterpret_cast<std::byte*>(&theirs),
                 sizeof own);
        return end.rank() == 0 ? next : static_cast<std::size_t>(theirs);
      });
}

}  // namespace

std::optional<Contender> raw_duplex_peer(const Work& work) {
  const bool tcp = work.kind == Kind::tcp || work.kind == Kind::hosts;
  if (!tcp || work.ranks != 2 || work.operation != Operation::all_reduce) return std::nullopt;
  return Contender{"raw-duplex", {{"caller", "main"}}, [work](const Setting& setting) {
                     const auto hosts = work.make_hosts();
                     // A separate thread, because a thread stays on a host until it exits.
                     const auto [one, other] =
                         std::async(std::launch::async, [&] { return connected_pair(hosts.get()); }).get();
                     const int ends[] = {one, other};
                     const Outcome outcome =
                         measure_ranks(2, setting, [&](RankEnd& end) { run(work, ends[end.rank()], end); });
                     close(one), close(other);
                     return outcome;
                   }};
}

}  // namespace weft::bench
