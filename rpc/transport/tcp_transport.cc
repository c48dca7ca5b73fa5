#include <weft/rpc/transport/tcp_transport.h>

#include <weft/rpc/transport/internal/socket_listener.h>
#include <weft/rpc/transport/internal/socket_stream.h>
#include <weft/rpc/transport/stream_connection.h>
#include <weft/rpc/transport/tls_stream.h>

#include <asio/connect.hpp>
#include <asio/ip/tcp.hpp>

#include <netinet/tcp.h>
#include <sys/socket.h>

#include <mutex>

namespace weft::rpc {
namespace {

using asio::ip::tcp;

std::string text(const tcp::endpoint& endpoint) {
  return Address{"tcp", endpoint.address().to_string(), std::to_string(endpoint.port()), {}}.text().substr(6);
}

// For lanes, which may be idle for long: connections say something themselves. A network that forgets idle
// flows is kept from it, and one that has done so is noticed.
void keep_alive(tcp::socket& socket) {
  const auto set = [&](int level, int option, int value) {
    (void)::setsockopt(socket.native_handle(), level, option, &value, sizeof value);
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 30);  // seconds
  set(IPPROTO_TCP, TCP_KEEPINTVL, 10);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
}

enum class Side { client, server };

// host: that was dialled; of a client.
std::shared_ptr<Connection> make_connection(tcp::socket socket, const std::shared_ptr<Loop>& loop,
                                            const ConnectionOptions& options, Side side,
                                            const std::string& host = {}) {
  asio::error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  keep_alive(socket);
  const auto local = socket.local_endpoint(ignored);
  const auto remote = socket.remote_endpoint(ignored);
  std::unique_ptr<ByteStream> stream = std::make_unique<SocketStream<tcp>>(
      std::move(socket), loop,
      "tcp " + text(local) + (side == Side::client ? " -> " : " <- ") + text(remote));
  if (options.credentials != nullptr && side == Side::server)
    stream = tls_server(std::move(stream), *options.credentials, loop);
  if (options.credentials != nullptr && side == Side::client)
    stream = tls_client(std::move(stream), *options.credentials,
                        options.expected_agent.empty() ? ExpectedPeer{.host = host}
                                                       : ExpectedPeer{.agent = options.expected_agent},
                        loop);
  return std::make_shared<StreamConnection>(std::move(stream), loop, options, true);
}

// One connect() from its name's resolution to its end; on its loop.
struct Attempt {
  tcp::resolver resolver;
  tcp::socket socket;
  std::shared_ptr<Loop> loop;
  ConnectionOptions options;
  Transport::Connected done;
  std::string host;
  std::string target;
  bool aborted = false;

  void fail(const asio::error_code& error) {
    done(std::make_exception_ptr(Error(ErrorKind::unavailable,
                                       "cannot connect to " + target + ": " + error.message(),
                                       Execution::not_sent)));
  }
  void succeed() {
    done(capture([&] { return make_connection(std::move(socket), loop, options, Side::client, host); }));
  }
  void abort() {
    aborted = true;  // a resolution that is on its way back succeeds all the same
    resolver.cancel();
    asio::error_code ignored;
    socket.close(ignored);
  }
};

class TcpTransport final : public Transport {
 public:
  std::string_view scheme() const override { return "tcp"; }

  void connect(const Address& address, std::shared_ptr<Loop> loop, const ConnectionOptions& options,
               Connected done) override {
    asio::io_context& context = io_context_of(*loop);
    auto attempt =
        std::make_shared<Attempt>(Attempt{tcp::resolver(context), tcp::socket(context), std::move(loop),
                                          options, std::move(done), address.host, address.text()});
    {
      std::lock_guard lock(mutex_);
      std::erase_if(attempts_, [](const auto& old) { return old.expired(); });
      attempts_.push_back(attempt);
    }
    attempt->resolver.async_resolve(
        address.host, address.port,
        [attempt](const asio::error_code& unresolved, tcp::resolver::results_type found) {
          if (unresolved) return attempt->fail(unresolved);
          if (attempt->aborted) return attempt->fail(asio::error::operation_aborted);
          asio::async_connect(attempt->socket, found,
                              [attempt](const asio::error_code& refused, const tcp::endpoint&) {
                                if (refused) return attempt->fail(refused);
                                attempt->succeed();
                              });
        });
  }

  void shut_down() override {
    std::lock_guard lock(mutex_);
    for (const auto& weak : attempts_) {
      const auto attempt = weak.lock();
      if (attempt == nullptr) continue;
      const auto* asio = dynamic_cast<AsioLoop*>(attempt->loop.get());
      if (asio != nullptr && !asio->owns_thread()) {
        attempt->abort();  // as an agent on the program's io_context ends on the thread that runs it
      } else {
        attempt->loop->post([attempt] { attempt->abort(); });
      }
    }
  }

  std::unique_ptr<Listener> listen(const Address& address, PickLoop pick, const ConnectionOptions& options,
                                   bool allow_remote, Accepted accepted) override {
    auto loop = pick();
    asio::io_context& context = io_context_of(*loop);
    try {
      tcp::acceptor acceptor = bind(context, address, allow_remote);
      const auto bound = acceptor.local_endpoint();
      Address actual{"tcp", bound.address().to_string(), std::to_string(bound.port()), {}};
      return std::make_unique<SocketListener<tcp>>(
          std::move(acceptor), std::move(loop), std::move(actual), std::move(pick),
          [options, accepted = std::move(accepted)](tcp::socket socket, const std::shared_ptr<Loop>& theirs) {
            auto connection = make_connection(std::move(socket), theirs, options, Side::server);
            theirs->post([accepted, connection] { accepted(connection); });
          },
          nullptr);
    } catch (const asio::system_error& error) {
      throw Error(ErrorKind::unavailable, "cannot listen on " + address.text() + ": " + error.what());
    }
  }

 private:
  // To the first of the host's addresses that this machine has: localhost may name an IPv6 one where there is
  // none.
  static tcp::acceptor bind(asio::io_context& context, const Address& address, bool allow_remote) {
    asio::error_code failure = asio::error::host_not_found;
    for (const auto& entry : tcp::resolver(context).resolve(address.host, address.port)) {
      const tcp::endpoint endpoint = entry.endpoint();
      if (!allow_remote && !endpoint.address().is_loopback())
        throw Error(ErrorKind::permission_denied,
                    "listening on " + address.text() +
                        " would let any host in: set AgentOptions::credentials, or AgentOptions::insecure to "
                        "accept that");
      try {
        return tcp::acceptor(context, endpoint);
      } catch (const asio::system_error& error) {
        failure = error.code();
      }
    }
    throw asio::system_error(failure);
  }

  std::mutex mutex_;  // guards attempts_
  std::vector<std::weak_ptr<Attempt>> attempts_;
};

}  // namespace

std::unique_ptr<Transport> make_tcp_transport() { return std::make_unique<TcpTransport>(); }

}  // namespace weft::rpc
