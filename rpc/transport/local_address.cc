#include <weft/rpc/transport/local_address.h>

#include <weft/rpc/core/error.h>

#include <asio/io_context.hpp>
#include <asio/ip/udp.hpp>

namespace weft::rpc {

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

}  // namespace weft::rpc
