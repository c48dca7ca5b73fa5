#include <weft/rpc/transport/unix_transport.h>

#include <weft/rpc/transport/internal/stream_listener.h>

#include <asio/local/stream_protocol.hpp>

#include <sys/stat.h>
#include <unistd.h>

namespace weft::rpc {
namespace {

using Protocol = asio::local::stream_protocol;

Protocol::endpoint endpoint(const Address& address) {
  if (address.path.size() >= sizeof(sockaddr_un::sun_path))
    throw Error(ErrorKind::invalid_argument,
                address.text() + " is longer than a socket's path may be (107 bytes)");
  return Protocol::endpoint(address.path);
}

// A socket file that nobody answers is left over from a process that died.
void remove_stale(asio::io_context& context, const Protocol::endpoint& where) {
  struct stat info{};
  if (::lstat(where.path().c_str(), &info) != 0 || !S_ISSOCK(info.st_mode)) return;
  Protocol::socket probe(context);
  probe.open();
  probe.non_blocking(true);  // one that is too busy to answer lives
  asio::error_code error;
  probe.connect(where, error);
  if (error == asio::error::connection_refused) ::unlink(where.path().c_str());
}

class UnixTransport final : public Transport {
 public:
  std::string_view scheme() const override { return "unix"; }

  void connect(const Address& address, std::shared_ptr<Loop> loop, const ConnectionOptions& options,
               Connected done) override {
    asio::io_context& context = asio_loop(*loop).context();
    auto socket = std::make_shared<Protocol::socket>(context);
    const Protocol::endpoint where = endpoint(address);
    socket->async_connect(where, [socket, loop, options, target = address.text(),
                                  done = std::move(done)](const asio::error_code& error) mutable {
      if (error)
        return done(std::make_exception_ptr(Error(ErrorKind::unavailable,
                                                  "cannot connect to " + target + ": " + error.message(),
                                                  Execution::not_sent)));
      done(std::static_pointer_cast<Connection>(std::make_shared<StreamConnection>(
          std::make_unique<SocketStream<Protocol>>(std::move(*socket), loop, "unix -> " + target), loop,
          options)));
    });
  }

  std::unique_ptr<Listener> listen(const Address& address, PickLoop pick, const ConnectionOptions& options,
                                   bool, Accepted accepted) override {
    auto loop = pick();
    asio::io_context& context = asio_loop(*loop).context();
    try {
      const Protocol::endpoint where = endpoint(address);
      remove_stale(context, where);
      Protocol::acceptor acceptor(context);
      acceptor.open();
      // On Linux the mode set before bind() is the file's: it is never open to others, not even for a moment.
      ::fchmod(acceptor.native_handle(), S_IRUSR | S_IWUSR);
      acceptor.bind(where);
      acceptor.listen();
      return std::make_unique<StreamListener<Protocol>>(
          std::move(acceptor), std::move(loop), address, std::move(pick), options, std::move(accepted),
          [target = address.text()](Protocol::socket&) { return "unix <- " + target; },
          [path = address.path] { ::unlink(path.c_str()); });
    } catch (const asio::system_error& error) {
      throw Error(ErrorKind::unavailable, "cannot listen on " + address.text() + ": " + error.what());
    }
  }
};

}  // namespace

std::unique_ptr<Transport> make_unix_transport() { return std::make_unique<UnixTransport>(); }

}  // namespace weft::rpc
