#include <weft/rpc/transport/unix_transport.h>

#include <weft/rpc/transport/internal/socket_listener.h>
#include <weft/rpc/transport/internal/socket_stream.h>
#include <weft/rpc/transport/internal/unix_socket.h>
#include <weft/rpc/transport/stream_connection.h>

namespace weft::rpc {
namespace {

using Protocol = asio::local::stream_protocol;

std::shared_ptr<Connection> make_connection(Protocol::socket socket, const std::shared_ptr<Loop>& loop,
                                            const ConnectionOptions& options, std::string description) {
  std::string identity = identity_of(socket.native_handle());
  return std::make_shared<StreamConnection>(
      std::make_unique<SocketStream<Protocol>>(std::move(socket), loop, std::move(description),
                                               std::move(identity)),
      loop, options);
}

class UnixTransport final : public Transport {
 public:
  std::string_view scheme() const override { return "unix"; }

  void connect(const Address& address, std::shared_ptr<Loop> loop, const ConnectionOptions& options,
               Connected done) override {
    auto socket = std::make_shared<Protocol::socket>(io_context_of(*loop));
    socket->async_connect(
        unix_endpoint(address), [socket, loop, options, target = address.text(),
                                 done = std::move(done)](const asio::error_code& error) mutable {
          if (error)
            return done(std::make_exception_ptr(Error(ErrorKind::unavailable,
                                                      "cannot connect to " + target + ": " + error.message(),
                                                      Execution::not_sent)));
          done(make_connection(std::move(*socket), loop, options, "unix -> " + target));
        });
  }

  std::unique_ptr<Listener> listen(const Address& address, PickLoop pick, const ConnectionOptions& options,
                                   bool, Accepted accepted) override {
    auto loop = pick();
    try {
      auto acceptor = listen_on(io_context_of(*loop), unix_endpoint(address));
      return std::make_unique<SocketListener<Protocol>>(
          std::move(acceptor), std::move(loop), address, std::move(pick),
          [options, accepted = std::move(accepted), target = address.text()](
              Protocol::socket socket, const std::shared_ptr<Loop>& theirs) {
            auto connection = make_connection(std::move(socket), theirs, options, "unix <- " + target);
            theirs->post([accepted, connection] { accepted(connection); });
          },
          [path = address.path] { ::unlink(path.c_str()); });
    } catch (const asio::system_error& error) {
      throw Error(ErrorKind::unavailable, "cannot listen on " + address.text() + ": " + error.what());
    }
  }
};

}  // namespace

std::unique_ptr<Transport> make_unix_transport() { return std::make_unique<UnixTransport>(); }

}  // namespace weft::rpc
