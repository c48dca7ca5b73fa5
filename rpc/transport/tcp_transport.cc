#include <weft/rpc/core/duration_text.h>
#include <weft/rpc/core/while_alive.h>
#include <weft/rpc/transport/address.h>
#include <weft/rpc/transport/internal/attempts.h>
#include <weft/rpc/transport/internal/socket_listener.h>
#include <weft/rpc/transport/internal/socket_stream.h>
#include <weft/rpc/transport/stream_connection.h>

#include <asio/ip/tcp.hpp>

#include <netinet/tcp.h>
#include <sys/socket.h>

#include <deque>

namespace weft::rpc {
namespace {

using asio::ip::tcp;

std::string text(const tcp::endpoint& endpoint) {
  return Address{"tcp", endpoint.address().to_string(), std::to_string(endpoint.port()), {}}.text().substr(6);
}

std::string host_of(const tcp::endpoint& endpoint) { return unmapped(endpoint).address().to_string(); }

// Only lanes need it: they may be idle for a long time. It prevents that a network drops an idle flow, and
// detects a flow that was dropped.
void keep_alive(tcp::socket& socket) {
  constexpr int options[][2]{{TCP_KEEPIDLE, 30}, {TCP_KEEPINTVL, 10}, {TCP_KEEPCNT, 3}};  // in seconds
  for (const auto& [option, value] : options)
    (void)::setsockopt(socket.native_handle(), IPPROTO_TCP, option, &value, sizeof value);
  asio::error_code ignored;
  socket.set_option(asio::socket_base::keep_alive(true), ignored);
}

// dialled: of a client, the name that the certificate must be for.
std::shared_ptr<Connection> make_connection(tcp::socket socket, const std::shared_ptr<Loop>& loop,
                                            const ConnectionOptions& options,
                                            const std::optional<std::string>& dialled) {
  asio::error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  keep_alive(socket);
  const auto local = socket.local_endpoint(ignored);
  const auto remote = socket.remote_endpoint(ignored);
  auto stream = std::make_unique<SocketStream<tcp>>(
      std::move(socket), loop, "tcp " + text(local) + (dialled ? " -> " : " <- ") + text(remote),
      HostPair{host_of(local), host_of(remote)});
  return make_secured_connection(std::move(stream), loop, options, dialled);
}

// One connect(), from resolving the name to the result; used on its loop. Each address of the host is tried
// for an equal share of the remaining time, so that one that does not answer leaves time for the next.
class Attempt : public std::enable_shared_from_this<Attempt> {
 public:
  Attempt(const Address& address, std::shared_ptr<Loop> loop, ConnectionOptions options,
          Transport::Connected done)
      : loop_(std::move(loop)),
        resolver_(io_context_of(*loop_)),
        socket_(io_context_of(*loop_)),
        options_(std::move(options)),
        done_(std::move(done)),
        address_(address) {}

  const std::shared_ptr<Loop>& loop() const { return loop_; }

  void begin() {
    if (aborted_) return fail(asio::error::operation_aborted);
    until_ = options_.connect_timeout.count() > 0 ? later(loop_->now(), options_.connect_timeout)
                                                  : Clock::time_point::max();
    arm(until_, [](Attempt& self) { self.fail(asio::error::timed_out); });  // a resolution cannot be ended
    resolver_.async_resolve(
        address_.host, address_.port,
        [self = shared_from_this()](const asio::error_code& unresolved, tcp::resolver::results_type found) {
          self->loop_->run_turn([&] {
            self->disarm();
            if (self->aborted_) return self->fail(asio::error::operation_aborted);
            if (unresolved) return self->fail(unresolved);
            for (const auto& entry : found) self->untried_.push_back(entry.endpoint());
            self->try_next(asio::error::host_not_found);
          });
        });
  }

  void abort() {
    aborted_ = true;  // a resolution that has just completed still reports success
    resolver_.cancel();
    close();
  }

 private:
  void try_next(const asio::error_code& last) {
    if (!done_) return;
    if (untried_.empty()) return fail(last);
    const tcp::endpoint endpoint = untried_.front();
    const auto now = loop_->now();
    const auto share = (until_ - now) / static_cast<Clock::rep>(untried_.size());
    untried_.pop_front();
    close();
    late_ = false;
    arm(until_ == Clock::time_point::max() ? until_ : now + share, [](Attempt& self) {
      self.late_ = true;
      self.close();
    });
    socket_.async_connect(endpoint, [self = shared_from_this(), endpoint](const asio::error_code& error) {
      self->loop_->run_turn([&] { self->tried(endpoint, error); });
    });
  }
  void tried(const tcp::endpoint& endpoint, const asio::error_code& error) {
    disarm();
    if (aborted_) return fail(asio::error::operation_aborted);
    if (!error && !late_) return succeed();
    if (late_ || error != asio::error::connection_refused) {
      refusal_ = Refusal::none;
    } else if (refusal_ == Refusal::on_this_host && !is_own_address(host_of(endpoint))) {
      refusal_ = Refusal::elsewhere;
    }
    try_next(late_ ? asio::error_code(asio::error::timed_out) : error);
  }

  void fail(const asio::error_code& error) {
    if (!done_) return;
    std::string reason = error.message();
    if (error == asio::error::timed_out && until_ != Clock::time_point::max())
      reason =
          "no answer within " + seconds_text(options_.connect_timeout) + " (AgentOptions::connect_timeout)";
    const bool refused = error == asio::error::connection_refused;
    std::exchange(done_,
                  nullptr)(cannot_connect(address_.text(), reason, refused ? refusal_ : Refusal::none));
  }
  void succeed() {
    std::exchange(done_, nullptr)(capture([&] {
      return make_connection(std::move(socket_), loop_, options_,
                             address_.certified.empty() ? address_.host : address_.certified);
    }));
  }
  void close() {
    asio::error_code ignored;
    socket_.close(ignored);
  }
  void arm(Clock::time_point when, void (*expired)(Attempt&)) {
    if (when == Clock::time_point::max()) return;
    timer_ = loop_->schedule(when, while_alive(this, [expired](Attempt& self) {
                               self.timer_ = 0;
                               expired(self);
                             }));
  }
  void disarm() {
    if (timer_ != 0) loop_->cancel(std::exchange(timer_, 0));
  }

  const std::shared_ptr<Loop> loop_;
  tcp::resolver resolver_;
  tcp::socket socket_;
  const ConnectionOptions options_;
  Transport::Connected done_;  // empty once it has been called
  const Address address_;
  Clock::time_point until_;
  std::deque<tcp::endpoint> untried_;
  Loop::TimerId timer_ = 0;
  Refusal refusal_ = Refusal::on_this_host;  // of the addresses that were tried
  bool late_ = false;                        // the share of the current address has expired
  bool aborted_ = false;
};

class TcpTransport final : public Transport {
 public:
  std::string_view scheme() const override { return "tcp"; }
  bool checks_credentials() const override { return true; }

  void connect(const Address& address, std::shared_ptr<Loop> loop, const ConnectionOptions& options,
               Connected done) override {
    auto attempt = std::make_shared<Attempt>(address, std::move(loop), options, std::move(done));
    attempts_.add(attempt);
    if (attempt->loop()->running_here()) return attempt->begin();
    attempt->loop()->post([attempt] { attempt->begin(); });
  }

  void shut_down() override { attempts_.abort(); }

  std::unique_ptr<Listener> listen(const Address& address, PickLoop pick, const ConnectionOptions& options,
                                   bool allow_remote, Accepted accepted) override {
    return SocketListener<tcp>::make(
        address, std::move(pick),
        [allow_remote](asio::io_context& context, Address& actual) {
          tcp::acceptor acceptor = bind(context, actual, allow_remote);
          const auto bound = acceptor.local_endpoint();
          actual = {"tcp", bound.address().to_string(), std::to_string(bound.port()), {}};
          return acceptor;
        },
        [options, accepted = std::move(accepted)](tcp::socket socket, const std::shared_ptr<Loop>& theirs) {
          auto connection = make_connection(std::move(socket), theirs, options, std::nullopt);
          theirs->post([accepted, connection] { accepted(connection); });
        },
        [] {});
  }

 private:
  // Binds to the first address of the name that this host has: localhost may resolve to an IPv6 address on a
  // host without IPv6.
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

  Attempts<Attempt> attempts_;
};

}  // namespace

std::unique_ptr<Transport> make_tcp_transport() { return std::make_unique<TcpTransport>(); }

}  // namespace weft::rpc
