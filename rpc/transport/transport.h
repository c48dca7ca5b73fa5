// Transport: makes connections for one scheme of addresses. An agent owns the transports that it may use.
//
// Thread-safety: connect() and listen() may be called from any thread; callbacks run on the given loops.
#pragma once

#include <weft/rpc/core/result.h>
#include <weft/rpc/transport/address.h>
#include <weft/rpc/transport/connection.h>

#include <functional>

namespace weft::rpc {

// Whether all addresses of a host answered that no process listens there. on_this_host: all of them belong to
// this host and network namespace. elsewhere: a load balancer or a firewall may have answered.
enum class Refusal : std::uint8_t { none, elsewhere, on_this_host };

// All addresses of the host answered that no process listens there.
class WEFT_EXPORT ConnectionRefused final : public Error {
 public:
  ConnectionRefused(const std::string& message, bool on_this_host)
      : Error(ErrorKind::unavailable, message, Execution::not_sent), on_this_host_(on_this_host) {}
  bool on_this_host() const { return on_this_host_; }  // Refusal::on_this_host

 private:
  bool on_this_host_;
};

// The error of a connect() that failed.
inline std::exception_ptr cannot_connect(const std::string& target, const std::string& reason,
                                         Refusal refusal) {
  const std::string text = "cannot connect to " + target + ": " + reason;
  if (refusal != Refusal::none)
    return std::make_exception_ptr(ConnectionRefused(text, refusal == Refusal::on_this_host));
  return std::make_exception_ptr(Error(ErrorKind::unavailable, text, Execution::not_sent));
}

// Accepts connections at one address until close(), or until it is destroyed.
class Listener final {
 public:
  // end: ends the acceptance; it is called once, by close().
  Listener(Address address, Callback end) : address_(std::move(address)), end_(std::move(end)) {}
  ~Listener() { close(); }

  const Address& address() const { return address_; }  // with the actual port
  // Any thread. After the call, no connection is accepted; connections that were accepted before may still be
  // passed to `accepted`.
  void close() {
    if (auto end = std::exchange(end_, nullptr)) end();
  }

 private:
  const Address address_;
  Callback end_;
};

class WEFT_EXPORT Transport {
 public:
  // Called once, on the given loop.
  using Connected = UniqueFunction<void(Result<std::shared_ptr<Connection>>)>;
  // Called on the connection's loop.
  using Accepted = std::function<void(std::shared_ptr<Connection>)>;
  using PickLoop = std::function<std::shared_ptr<Loop>()>;  // null: no more connections are wanted

  virtual ~Transport() = default;
  virtual std::string_view scheme() const = 0;  // the scheme of its addresses: "tcp"
  // Whether the connections of this transport authenticate the peer with ConnectionOptions::credentials, or
  // never leave this process. An agent with credentials uses only such transports.
  virtual bool checks_credentials() const { return false; }
  // Fails with ConnectionRefused if no process listens at any address of the host, and with unavailable if
  // there is no answer within options.connect_timeout. Throws invalid_argument for an address of another
  // transport.
  virtual void connect(const Address& address, std::shared_ptr<Loop> loop, const ConnectionOptions& options,
                       Connected done) = 0;

  virtual void shut_down() {}  // connect() calls in flight fail soon
  // allow_remote: if it is false, an address that other hosts can reach fails with permission_denied.
  virtual std::unique_ptr<Listener> listen(const Address& address, PickLoop pick,
                                           const ConnectionOptions& options, bool allow_remote,
                                           Accepted accepted) = 0;
};

// TCP: the transport between hosts, over IPv4 and IPv6, with TCP_NODELAY. A listener on an address other than
// loopback requires allow_remote. Unix sockets: a transport within a host. The socket's file has mode 0600
// and is removed with its listener. Connections of both use TLS if ConnectionOptions::credentials is set.
WEFT_EXPORT std::unique_ptr<Transport> make_tcp_transport();
WEFT_EXPORT std::unique_ptr<Transport> make_unix_transport();

}  // namespace weft::rpc
