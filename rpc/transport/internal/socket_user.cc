#include <weft/rpc/transport/internal/socket_user.h>

#include <weft/rpc/core/descriptor.h>
#include <weft/rpc/transport/shm/peer_memory.h>

#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>

namespace weft::rpc {
namespace {

using asio::ip::tcp;

std::string uid_text(const std::optional<uid_t>& user) {
  return user ? "uid:" + std::to_string(*user) : std::string();
}

// Whether a process has the socket, and the other side of the connection has answered. A search by addresses
// may also find a listening socket.
bool is_connected(unsigned state, std::uint64_t inode) {
  return inode != 0 && state != TCP_SYN_SENT && state != TCP_SYN_RECV && state != TCP_LISTEN;
}

template <class Word>
void set_address(Word (&words)[4], const asio::ip::address& address) {
  const auto set = [&](const auto& bytes) { std::memcpy(words, bytes.data(), bytes.size()); };
  address.is_v4() ? set(address.to_v4().to_bytes()) : set(address.to_v6().to_bytes());
}

// Asks the kernel for the user of the socket at `own`. nullopt: it has no user, or the kernel does not
// answer.
std::optional<uid_t> ask_kernel(const tcp::endpoint& own, const tcp::endpoint& other) {
  const Descriptor netlink(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  if (!netlink) return std::nullopt;
  struct {
    nlmsghdr header;
    inet_diag_req_v2 body;
  } request{};
  request.header.nlmsg_len = sizeof request;
  request.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  request.header.nlmsg_flags = NLM_F_REQUEST;
  request.body.sdiag_family = static_cast<std::uint8_t>(own.protocol().family());
  request.body.sdiag_protocol = IPPROTO_TCP;
  request.body.idiag_states = ~0U;
  request.body.id.idiag_sport = htons(own.port());
  request.body.id.idiag_dport = htons(other.port());
  set_address(request.body.id.idiag_src, own.address());
  set_address(request.body.id.idiag_dst, other.address());
  request.body.id.idiag_cookie[0] = request.body.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  if (::send(netlink.get(), &request, sizeof request, 0) != static_cast<ssize_t>(sizeof request))
    return std::nullopt;
  alignas(nlmsghdr) char reply[1024];  // the kernel has queued it before send() returns
  const ssize_t bytes = ::recv(netlink.get(), reply, sizeof reply, MSG_DONTWAIT);
  nlmsghdr header{};
  inet_diag_msg body{};
  if (bytes < static_cast<ssize_t>(NLMSG_LENGTH(sizeof body))) return std::nullopt;
  std::memcpy(&header, reply, sizeof header);
  std::memcpy(&body, reply + NLMSG_HDRLEN, sizeof body);
  if (header.nlmsg_type != SOCK_DIAG_BY_FAMILY || body.id.idiag_dport != request.body.id.idiag_dport ||
      !is_connected(body.idiag_state, body.idiag_inode))
    return std::nullopt;
  return body.idiag_uid;
}

std::optional<uid_t> user_at(const tcp::endpoint& end, const tcp::endpoint& towards) {
  if (const auto user = ask_kernel(end, towards)) return user;
  // The kernel answers for the other end, which exists: so this one has no user.
  if (ask_kernel(towards, end)) return std::nullopt;
  for (const char* name : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(name);
    const std::string table{std::istreambuf_iterator<char>(file), {}};
    if (const auto user = user_in_table(table, end, towards)) return user;
  }
  return std::nullopt;
}

// As in the table: words of the address in the byte order of this machine, and the port.
std::string columns(const tcp::endpoint& end, bool v6) {
  asio::ip::address address = end.address();
  if (v6 && address.is_v4()) address = asio::ip::make_address_v6(asio::ip::v4_mapped, address.to_v4());
  std::uint32_t words[4] = {};
  set_address(words, address);
  std::string text;
  char digits[16];
  for (int i = 0; i < (v6 ? 4 : 1); ++i) {
    std::snprintf(digits, sizeof digits, "%08X", words[i]);
    text += digits;
  }
  std::snprintf(digits, sizeof digits, ":%04X", static_cast<unsigned>(end.port()));
  return text + digits;
}

}  // namespace

tcp::endpoint unmapped(const tcp::endpoint& end) {
  const auto address = end.address();
  if (!address.is_v6() || !address.to_v6().is_v4_mapped()) return end;
  return {asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6()), end.port()};
}

std::string identity_of(asio::local::stream_protocol::socket& socket) {
  return uid_text(peer_user(socket.native_handle()));
}

std::string identity_of(tcp::socket& socket) {
  asio::error_code error;
  const tcp::endpoint own = unmapped(socket.local_endpoint(error));
  if (error || !own.address().is_loopback()) return {};
  const tcp::endpoint other = unmapped(socket.remote_endpoint(error));
  if (error || !other.address().is_loopback()) return {};
  const auto user = user_at(other, own);
  // If the connection was reset meanwhile, another process may have got its addresses.
  (void)socket.remote_endpoint(error);
  return error ? std::string() : uid_text(user);
}

bool can_ask_for_users() {
  return static_cast<bool>(Descriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)));
}

std::optional<uid_t> user_in_table(std::string_view table, const tcp::endpoint& own,
                                   const tcp::endpoint& other) {
  for (const bool v6 : {false, true}) {
    if (!v6 && own.address().is_v6()) continue;
    const std::string ends = " " + columns(own, v6) + " " + columns(other, v6) + " ";
    const std::size_t at = table.find(ends);
    if (at == table.npos) continue;
    std::istringstream rest{std::string(table.substr(at + ends.size(), 160))};
    unsigned state = 0;
    std::string queues, timer, retransmits, timeout;
    uid_t user = 0;
    std::uint64_t inode = 0;
    rest >> std::hex >> state >> std::dec >> queues >> timer >> retransmits >> user >> timeout >> inode;
    if (rest && is_connected(state, inode)) return user;
  }
  return std::nullopt;
}

}  // namespace weft::rpc
