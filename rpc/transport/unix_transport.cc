#include <weft/rpc/transport/internal/socket_listener.h>
#include <weft/rpc/transport/internal/socket_stream.h>
#include <weft/rpc/transport/internal/unix_socket.h>
#include <weft/rpc/transport/stream_connection.h>

namespace weft::rpc {
namespace {

using Protocol = asio::local::stream_protocol;

std::shared_ptr<Connection> make_connection(Protocol::socket socket, const std::shared_ptr<Loop>& loop,
                                            const ConnectionOptions& options, std::string description,
                                            const std::optional<std::string>& dialled) {
  return make_secured_connection(
      std::make_unique<SocketStream<Protocol>>(std::move(socket), loop, std::move(description), HostPair{}),
      loop, options, dialled);
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
        done(capture(
            [&] { return make_connection(std::move(*socket), loop, options, "unix -> " + target, ""); }));
      });
    });
  }

  std::unique_ptr<Listener> listen(const Address& address, PickLoop pick, const ConnectionOptions& options,
                                   bool, Accepted accepted) override {
    return SocketListener<Protocol>::make(
        address, std::move(pick), listen_on,
        [options, accepted = std::move(accepted), description = "unix <- " + address.text()](
            Protocol::socket socket, const std::shared_ptr<Loop>& theirs) {
          auto connection = make_connection(std::move(socket), theirs, options, description, std::nullopt);
          theirs->post([accepted, connection] { accepted(connection); });
        },
        [path = address.path] { ::unlink(path.c_str()); });
  }
};

}  // namespace

std::unique_ptr<Transport> make_unix_transport() { return std::make_unique<UnixTransport>(); }

}  // namespace weft::rpc
