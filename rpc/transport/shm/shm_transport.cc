#include <weft/rpc/transport/shm/shm_transport.h>

#include <weft/rpc/transport/internal/attempts.h>
#include <weft/rpc/transport/internal/socket_listener.h>
#include <weft/rpc/transport/internal/unix_socket.h>
#include <weft/rpc/transport/shm/handshake.h>
#include <weft/rpc/transport/stream_connection.h>
#include <weft/rpc/transport/tls_stream.h>

#include <atomic>

namespace weft::rpc {
namespace {

using Socket = ShmHandshake::Socket;

// Limits the number of connections.
class ConnectionSlots : public std::enable_shared_from_this<ConnectionSlots> {
 public:
  explicit ConnectionSlots(std::size_t max) : max_(max) {}
  // Takes a slot, which is released with the last copy of the pointer; null: all are taken.
  std::shared_ptr<void> take() {
    if (taken_.fetch_add(1) >= max_) {
      --taken_;
      return nullptr;
    }
    return {static_cast<void*>(this), [self = shared_from_this()](void*) { --self->taken_; }};
  }

 private:
  const std::size_t max_;
  std::atomic<std::size_t> taken_{0};
};

std::exception_ptr with_target(const std::exception_ptr& error, const std::string& target) {
  const auto known = as_error(error);
  if (!known) return error;
  return std::make_exception_ptr(
      Error(known->kind(), "cannot connect to " + target + ": " + known->what(), Execution::not_sent));
}

class ShmTransport final : public Transport {
 public:
  explicit ShmTransport(const ShmOptions& options)
      : options_(options), slots_(std::make_shared<ConnectionSlots>(options.max_connections)) {}

  std::string_view scheme() const override { return "shm"; }
  bool checks_credentials() const override { return true; }

  void connect(const Address& address, std::shared_ptr<Loop> loop, const ConnectionOptions& connection,
               Connected done) override {
    const auto where = unix_endpoint(address);
    auto slot = slots_->take();
    if (slot == nullptr)
      return loop->post(
          [done = std::move(done), target = address.text(), max = options_.max_connections]() mutable {
            done(Error(ErrorKind::resource_exhausted,
                       "cannot connect to " + target + ": there are " + std::to_string(max) +
                           " connections through shared memory, the maximum",
                       Execution::not_sent));
          });
    auto attempt = ShmHandshake::make(
        Socket(io_context_of(*loop)), loop, options_, "shm -> " + address.path,
        [loop, connection, target = address.text(),
         done = std::move(done)](Result<std::unique_ptr<ByteStream>> made) mutable {
          if (!made) return done(with_target(made.error(), target));
          done(capture([&]() -> std::shared_ptr<Connection> {
            return std::make_shared<StreamConnection>(
                secured_client(std::move(made).get(), connection, {}, loop), loop, connection);
          }));
        },
        std::move(slot));
    attempts_.add(attempt);
    attempt->connect(where);
  }

  void shut_down() override { attempts_.abort(); }

  std::unique_ptr<Listener> listen(const Address& address, PickLoop pick, const ConnectionOptions& connection,
                                   bool, Accepted accepted) override {
    auto loop = pick();
    auto attempts = std::make_shared<Attempts<ShmHandshake>>();
    try {
      const auto where = unix_endpoint(address);
      auto acceptor = listen_on(io_context_of(*loop), where);
      return SocketListener<asio::local::stream_protocol>::make(
          std::move(acceptor), std::move(loop), address, std::move(pick),
          [attempts, options = options_, slots = slots_, connection, accepted = std::move(accepted),
           description = "shm <- " + address.path](Socket socket, const std::shared_ptr<Loop>& theirs) {
            auto slot = slots->take();
            if (slot == nullptr) return;  // the other side sees the socket's end
            auto attempt = ShmHandshake::make(
                std::move(socket), theirs, options, description,
                [theirs, connection, accepted](Result<std::unique_ptr<ByteStream>> made) {
                  if (made)
                    accepted(std::make_shared<StreamConnection>(
                        secured_server(std::move(made).get(), connection, theirs), theirs, connection));
                  // otherwise the other side is unknown, so there is nothing to report
                },
                std::move(slot));
            attempts->add(attempt);
            theirs->post([attempt] { attempt->begin(); });
          },
          [attempts, path = address.path] {
            attempts->abort();
            ::unlink(path.c_str());
          });
    } catch (const asio::system_error& error) {
      throw Error(ErrorKind::unavailable, "cannot listen on " + address.text() + ": " + error.what());
    }
  }

 private:
  const ShmOptions options_;
  const std::shared_ptr<ConnectionSlots> slots_;
  Attempts<ShmHandshake> attempts_;
};

}  // namespace

std::unique_ptr<Transport> make_shm_transport(const ShmOptions& options) {
  return std::make_unique<ShmTransport>(options);
}

}  // namespace weft::rpc
