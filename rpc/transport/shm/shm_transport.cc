#include <weft/rpc/transport/shm/shm_transport.h>

#include <weft/rpc/transport/internal/attempts.h>
#include <weft/rpc/transport/internal/socket_listener.h>
#include <weft/rpc/transport/internal/unix_socket.h>
#include <weft/rpc/transport/stream_connection.h>

#include <atomic>

namespace weft::rpc {
namespace {

using Socket = ShmHandshake::Socket;

// Takes one of `max` slots for connections. It is released with the last copy of the pointer; null: all are
// taken.
std::shared_ptr<void> take_slot(const std::shared_ptr<std::atomic<std::size_t>>& taken, std::size_t max) {
  const bool free = taken->fetch_add(1) < max;
  const std::shared_ptr<void> slot(taken.get(), [taken](void*) { --*taken; });
  return free ? slot : nullptr;
}

std::exception_ptr with_target(const std::exception_ptr& error, const std::string& target) {
  const auto known = as_error(error);
  if (!known) return error;
  return std::make_exception_ptr(
      Error(known->kind(), "cannot connect to " + target + ": " + known->what(), Execution::not_sent));
}

class ShmTransport final : public Transport {
 public:
  explicit ShmTransport(const ShmOptions& options) : options_(options) {}

  std::string_view scheme() const override { return "shm"; }
  bool checks_credentials() const override { return true; }

  void connect(const Address& address, std::shared_ptr<Loop> loop, const ConnectionOptions& connection,
               Connected done) override {
    const auto where = unix_endpoint(address);
    auto slot = take_slot(taken_, options_.max_connections);
    if (slot == nullptr)
      return loop->post(
          [done = std::move(done), target = address.text(), max = options_.max_connections]() mutable {
            done(Error(ErrorKind::resource_exhausted,
                       "cannot connect to " + target + ": there are " + std::to_string(max) +
                           " connections through shared memory, the maximum",
                       Execution::not_sent));
          });
    auto attempt = std::make_shared<ShmHandshake>(
        Socket(io_context_of(*loop)), loop, options_, "shm -> " + address.path,
        [loop, connection, target = address.text(),
         done = std::move(done)](Result<std::unique_ptr<ByteStream>> made) mutable {
          if (!made) return done(with_target(made.error(), target));
          done(capture([&] { return make_secured_connection(std::move(made).get(), loop, connection, ""); }));
        },
        std::move(slot));
    attempts_.add(attempt);
    attempt->connect(where);
  }

  void shut_down() override { attempts_.abort(); }

  std::unique_ptr<Listener> listen(const Address& address, PickLoop pick, const ConnectionOptions& connection,
                                   bool, Accepted accepted) override {
    auto attempts = std::make_shared<Attempts<ShmHandshake>>();
    return SocketListener<asio::local::stream_protocol>::make(
        address, std::move(pick), listen_on,
        [attempts, options = options_, taken = taken_, connection, accepted = std::move(accepted),
         description = "shm <- " + address.path](Socket socket, const std::shared_ptr<Loop>& theirs) {
          auto slot = take_slot(taken, options.max_connections);
          if (slot == nullptr) return;  // the other side sees the socket's end
          auto attempt = std::make_shared<ShmHandshake>(
              std::move(socket), theirs, options, description,
              [theirs, connection, accepted](Result<std::unique_ptr<ByteStream>> made) {
                if (made)
                  accepted(make_secured_connection(std::move(made).get(), theirs, connection, std::nullopt));
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
  }

 private:
  const ShmOptions options_;
  const std::shared_ptr<std::atomic<std::size_t>> taken_ = std::make_shared<std::atomic<std::size_t>>();
  Attempts<ShmHandshake> attempts_;
};

}  // namespace

std::unique_ptr<Transport> make_shm_transport(const ShmOptions& options) {
  return std::make_unique<ShmTransport>(options);
}

}  // namespace weft::rpc
