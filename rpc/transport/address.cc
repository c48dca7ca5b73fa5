#include <weft/rpc/transport/address.h>

#include <weft/rpc/core/error.h>
#include <weft/rpc/core/parse_number.h>

#include <asio/io_context.hpp>
#include <asio/ip/udp.hpp>

#include <ifaddrs.h>
#include <netinet/in.h>

#include <algorithm>

namespace weft::rpc {
namespace {

[[noreturn]] void refuse(std::string_view text) {
  throw Error(ErrorKind::invalid_argument, "'" + std::string(text) +
                                               "' is not an address, expected tcp://host:port, "
                                               "tcp://[v6]:port, unix:///path, shm:///path or inproc://name");
}

bool is_port(std::string_view port) {
  const auto number = parse_number<unsigned>(port);
  return number && *number <= 65535;
}

}  // namespace

Address Address::parse(std::string_view text) {
  const std::size_t separator = text.find("://");
  if (separator == std::string_view::npos) refuse(text);
  Address address;
  address.scheme = text.substr(0, separator);
  std::string_view rest = text.substr(separator + 3);
  if (address.scheme == "unix" || address.scheme == "shm" || address.scheme == "inproc" ||
      address.scheme == "sim") {
    address.path = rest;
    if (rest.empty()) refuse(text);
    return address;
  }
  if (address.scheme != "tcp") refuse(text);
  const std::size_t at = text.find('@', separator);
  if (at != std::string_view::npos) {
    address.certified = text.substr(separator + 3, at - separator - 3);
    if (address.certified.empty()) refuse(text);
    rest = text.substr(at + 1);
  }
  const std::size_t colon = rest.rfind(':');
  if (colon == std::string_view::npos || !is_port(rest.substr(colon + 1))) refuse(text);
  std::string_view host = rest.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    refuse(text);
  }
  if (host.empty()) refuse(text);
  address.host = host;
  address.port = rest.substr(colon + 1);
  return address;
}

std::string Address::text() const {
  if (scheme != "tcp") return scheme + "://" + path;
  return "tcp://" + (certified.empty() ? "" : certified + "@") +
         (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" + port;
}

std::string local_address_towards(const std::string& host) {
  using asio::ip::udp;
  asio::io_context context;
  asio::error_code error;
  const auto found = udp::resolver(context).resolve(host, "9", error);
  if (error) throw Error(ErrorKind::unavailable, "cannot resolve '" + host + "': " + error.message());
  for (const auto& entry : found) {
    // Connecting a datagram socket chooses a route and an address, and sends nothing.
    udp::socket socket(context);
    socket.open(entry.endpoint().protocol(), error);
    if (!error) socket.connect(entry.endpoint(), error);
    if (error) continue;
    const auto local = socket.local_endpoint(error);
    if (!error) return local.address().to_string();
  }
  throw Error(ErrorKind::unavailable, "no route to '" + host + "': " + error.message());
}

bool is_wildcard(const std::string& host) {
  asio::error_code error;
  const auto address = asio::ip::make_address(host, error);
  return !error && address.is_unspecified();
}

bool is_own_address(const std::string& host) {
  asio::error_code error;
  const auto address = asio::ip::make_address(host, error);
  if (error || address.is_unspecified()) return false;
  if (address.is_loopback()) return true;
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return false;
  bool found = false;
  for (const ifaddrs* one = all; one != nullptr && !found; one = one->ifa_next) {
    if (one->ifa_addr == nullptr) continue;
    if (one->ifa_addr->sa_family == AF_INET && address.is_v4()) {
      found = reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr.s_addr ==
              htonl(address.to_v4().to_uint());
    } else if (one->ifa_addr->sa_family == AF_INET6 && address.is_v6()) {
      const auto bytes = address.to_v6().to_bytes();
      found = std::equal(bytes.begin(), bytes.end(),
                         reinterpret_cast<const sockaddr_in6*>(one->ifa_addr)->sin6_addr.s6_addr);
    }
  }
  ::freeifaddrs(all);
  return found;
}

std::optional<Address> as_seen_by_peer(Address own, const std::optional<HostPair>& hosts) {
  if (own.scheme != "tcp" || !is_wildcard(own.host)) return own;
  if (!hosts) return std::nullopt;
  const bool v6 = own.host.find(':') != std::string::npos;
  const std::string& host = hosts->own;
  if (!v6 && host.find(':') != std::string::npos) return std::nullopt;
  own.host = !host.empty() ? host : v6 ? "::1" : "127.0.0.1";
  return own;
}

bool is_on_host_of_peer(const Address& stated, const std::optional<HostPair>& hosts) {
  if (stated.scheme == "inproc" || stated.scheme == "sim") return true;
  if (!hosts) return false;
  if (stated.scheme == "tcp" && stated.host == hosts->other) return true;
  const bool one_host = hosts->other.empty() || is_own_address(hosts->other);
  return one_host && (stated.scheme != "tcp" || is_own_address(stated.host));
}

}  // namespace weft::rpc
