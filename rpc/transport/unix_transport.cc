#include <weft/rpc/transport/unix_transport.h>

#include <weft/rpc/transport/internal/socket_listener.h>
#include <weft/rpc/transport/internal/socket_stream.h>
#include <weft/rpc/transport/internal/unix_socket.h>
#include <weft/rpc/transport/stream_connection.h>
#include <weft/rpc/transport/tls_stream.h>

namespace weft::rpc {
namespace {

using Protocol = asio::local::stream_protocol;

std::unique_ptr<ByteStream> stream_of(Protocol::socket socket, const std::shared_ptr<Loop>& loop,
                                      std::string description) {
  return std::make_unique<SocketStream<Protocol>>(std::move(socket), loop, std::move(description),
                                                  HostPair{});
}

class UnixTransport final : public Transport {
 public:
  std::string_view scheme() const override { return "unix"; }
  bool checks_credentials() const override { return true; }

  void connect(const Address& address, std::shared_ptr<Loop> loop, const ConnectionOptions& options,
               Connected done) override {
    auto socket = std::make_shared<Protocol::socket>(io_context_of(*loop));
    socket->async_connect(unix_endpoint(address), [socket, loop, options, target = address.text(),
                                                   done = std::move(done)](asio::error_code error) mutable {
      loop->run_turn([&] {
        error = connect_result(*socket, error);
        if (error) {
          const bool refused =
              error == asio::error::connection_refused || error == std::errc::no_such_file_or_directory;
          return done(
              cannot_connect(target, error.message(), refused ? Refusal::on_this_host : Refusal::none));
        }
        done(capture([&]() -> std::shared_ptr<Connection> {
          auto stream = stream_of(std::move(*socket), loop, "unix -> " + target);
          return std::make_shared<StreamConnection>(secured_client(std::move(stream), options, {}, loop),
                                                    loop, options);
        }));
      });
    });
  }

  std::unique_ptr<Listener> listen(const Address& address, PickLoop pick, const ConnectionOptions& options,
                                   bool, Accepted accepted) override {
    auto loop = pick();
    try {
      auto acceptor = listen_on(io_context_of(*loop), unix_endpoint(address));
      return SocketListener<Protocol>::make(
          std::move(acceptor), std::move(loop), address, std::move(pick),
          [options, accepted = std::move(accepted), target = address.text()](
              Protocol::socket socket, const std::shared_ptr<Loop>& theirs) {
            auto stream = stream_of(std::move(socket), theirs, "unix <- " + target);
            auto connection = std::make_shared<StreamConnection>(
                secured_server(std::move(stream), options, theirs), theirs, options);
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
