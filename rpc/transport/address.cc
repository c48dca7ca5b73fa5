#include <weft/rpc/transport/address.h>

#include <weft/rpc/core/error.h>
#include <weft/rpc/core/parse_number.h>

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

}  // namespace weft::rpc
