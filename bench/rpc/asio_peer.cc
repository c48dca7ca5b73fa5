// A bare Asio program: the same bytes through an event loop, with callbacks and nothing else.
#include "bench/rpc/work.h"

#include <asio/buffer.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/local/stream_protocol.hpp>
#include <asio/read.hpp>
#include <asio/write.hpp>

#include <unistd.h>

#include <array>

namespace weft::bench {
namespace {

using asio::error_code;
using Tcp = asio::ip::tcp;
using Local = asio::local::stream_protocol;

// Without a condition that says so, async_read and async_write move 64 KiB a system call.
auto all_of(std::size_t bytes) {
  return [bytes](const error_code& error, std::size_t done) { return error ? 0 : bytes - done; };
}

void need(const error_code& error) {
  if (error) throw asio::system_error(error);
}

// Takes requests, each with a tensor of `bytes` behind it, and answers them. Ends with its client.
template <class Protocol>
class Server {
 public:
  Server(typename Protocol::socket socket, std::size_t bytes) : socket_(std::move(socket)), tensor_(bytes) {}

  void start() {
    if (tensor_.empty()) return read_requests();
    read_tensor();
  }

 private:
  // However many requests have come, their replies leave in one write.
  void read_requests() {
    socket_.async_read_some(asio::buffer(requests_), [this](const error_code& error, std::size_t n) {
      if (error) return;
      pending_ += n;
      const std::size_t replies = pending_ / request_bytes;
      pending_ %= request_bytes;
      write(replies, [this] { read_requests(); });
    });
  }
  void read_tensor() {
    const std::array parts{asio::buffer(requests_, request_bytes), asio::buffer(tensor_)};
    asio::async_read(socket_, parts, all_of(asio::buffer_size(parts)),
                     [this](const error_code& error, std::size_t) {
                       if (!error) write(1, [this] { read_tensor(); });
                     });
  }
  template <class Next>
  void write(std::size_t replies, Next next) {
    asio::async_write(socket_, asio::buffer(replies_, replies * reply_bytes),
                      [next](const error_code& error, std::size_t) {
                        if (!error) next();
                      });
  }

  typename Protocol::socket socket_;
  std::vector<char> tensor_;
  std::array<char, in_flight * request_bytes> requests_;
  std::array<char, in_flight * reply_bytes> replies_{};
  std::size_t pending_ = 0;
};

template <class Protocol>
class Client {
 public:
  Client(typename Protocol::socket socket, const Work& work, const Budget& budget)
      : socket_(std::move(socket)), work_(work), latency_(budget), rate_(budget), tensor_(work.bytes) {}

  void start() {
    switch (work_.kind) {
      case Kind::throughput:
        send(in_flight);
        return receive();
      case Kind::bulk:
        return send_tensor();
      default:
        return call();
    }
  }
  Figures figures() const {
    switch (work_.kind) {
      case Kind::throughput:
        return rate_.calls();
      case Kind::bulk:
        return rate_.bandwidth(work_.bytes);
      default:
        return latency_.figures();
    }
  }

 private:
  void call() {
    latency_.begin();
    asio::async_write(socket_, asio::buffer(requests_, request_bytes),
                      [this](const error_code& error, std::size_t) {
                        need(error);
                        read_reply([this] {
                          if (latency_.end()) call();
                        });
                      });
  }
  void send_tensor() {
    const std::array parts{asio::const_buffer(requests_.data(), request_bytes),
                           asio::const_buffer(asio::buffer(tensor_))};
    asio::async_write(socket_, parts, all_of(asio::buffer_size(parts)),
                      [this](const error_code& error, std::size_t) {
                        need(error);
                        read_reply([this] {
                          if (rate_.count(1)) send_tensor();
                        });
                      });
  }
  template <class Next>
  void read_reply(Next next) {
    asio::async_read(socket_, asio::buffer(replies_, reply_bytes),
                     [next](const error_code& error, std::size_t) {
                       need(error);
                       next();
                     });
  }

  // As many new calls as have ended, in one write; those that end meanwhile wait for the next.
  void receive() {
    socket_.async_read_some(asio::buffer(replies_), [this](const error_code& error, std::size_t n) {
      need(error);
      pending_ += n;
      const std::size_t ended = pending_ / reply_bytes;
      pending_ %= reply_bytes;
      if (ended != 0 && !rate_.count(ended)) {
        enough_ = true;
        return;
      }
      send(ended);
      receive();
    });
  }
  void send(std::size_t calls) {
    due_ += calls;
    if (writing_ || due_ == 0) return;
    writing_ = true;
    asio::async_write(socket_, asio::buffer(requests_, std::exchange(due_, 0) * request_bytes),
                      [this](const error_code& error, std::size_t) {
                        need(error);
                        writing_ = false;
                        if (!enough_) send(0);
                      });
  }

  typename Protocol::socket socket_;
  const Work& work_;
  LatencyMeter latency_;
  RateMeter rate_;
  std::vector<char> tensor_;
  std::array<char, in_flight * request_bytes> requests_{};
  std::array<char, in_flight * reply_bytes> replies_;
  std::size_t pending_ = 0, due_ = 0;
  bool writing_ = false, enough_ = false;
};

template <class Protocol>
void serve(const Work& work, const typename Protocol::endpoint& where, ServerEnd& end) {
  constexpr bool tcp = std::is_same_v<Protocol, Tcp>;
  asio::io_context context{1};
  typename Protocol::socket socket(context);
  {
    typename Protocol::acceptor acceptor(context, where);
    if constexpr (tcp) {
      end.announce(std::to_string(acceptor.local_endpoint().port()));
    } else {
      end.announce(where.path());
    }
    acceptor.accept(socket);
  }
  if constexpr (tcp) {
    socket.set_option(Tcp::no_delay(true));
  } else {
    unlink(where.path().c_str());
  }
  Server<Protocol> server(std::move(socket), work.bytes);
  server.start();
  context.run();
  end.wait_for_client();
}

template <class Protocol>
void measure(const Work& work, const typename Protocol::endpoint& where, ClientEnd& end) {
  asio::io_context context{1};
  typename Protocol::socket socket(context);
  socket.connect(where);
  if constexpr (std::is_same_v<Protocol, Tcp>) socket.set_option(Tcp::no_delay(true));
  Client<Protocol> client(std::move(socket), work, end.budget());
  client.start();
  context.run();
  end.report(client.figures());
}

}  // namespace

std::optional<Contender> asio_peer(const Work& work) {
  if (work.kind == Kind::get) return std::nullopt;  // nothing waits in a loop of callbacks
  const Notes notes{{"wait", "blocking"}, {"caller", "callback on the loop"}};
  const auto loopback = asio::ip::address_v4::loopback();
  if (work.wire == Wire::unix_socket)
    return contender("asio", notes,
                     {.serve = [=](ServerEnd& end) { serve<Local>(work, scratch_path(".sock"), end); },
                      .measure = [=](ClientEnd& end) { measure<Local>(work, end.address(), end); }});
  return contender("asio", notes,
                   {.serve = [=](ServerEnd& end) { serve<Tcp>(work, {loopback, 0}, end); },
                    .measure =
                        [=](ClientEnd& end) {
                          const auto port = static_cast<std::uint16_t>(std::stoi(end.address()));
                          measure<Tcp>(work, {loopback, port}, end);
                        }});
}

}  // namespace weft::bench
