// A bare Asio program that sends the same bytes through an event loop, with callbacks and nothing else. In
// cases that spin, the program polls the loop, and blocks only after some time without events.
#include "bench/rpc/work.h"

#include <asio/buffer.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/local/stream_protocol.hpp>
#include <asio/read.hpp>
#include <asio/write.hpp>

#include <unistd.h>

#include <array>
#include <cstring>

namespace weft::bench {
namespace {

using asio::error_code;
using Tcp = asio::ip::tcp;
using Local = asio::local::stream_protocol;
using Clock = std::chrono::steady_clock;

// Without a completion condition, async_read and async_write move 64 KiB per system call.
template <class Buffers>
auto all_of(const Buffers& buffers) {
  return [bytes = asio::buffer_size(buffers)](const error_code& error, std::size_t done) {
    return error ? 0 : bytes - done;
  };
}
template <class Socket, class Handler>
void write_all(Socket& socket, asio::const_buffer head, asio::const_buffer tensor, Handler handler) {
  if (tensor.size() == 0) return asio::async_write(socket, head, std::move(handler));
  const std::array parts{head, tensor};
  asio::async_write(socket, parts, all_of(parts), std::move(handler));
}
template <class Socket, class Handler>
void read_all(Socket& socket, asio::mutable_buffer head, asio::mutable_buffer tensor, Handler handler) {
  if (tensor.size() == 0) return asio::async_read(socket, head, std::move(handler));
  const std::array parts{head, tensor};
  asio::async_read(socket, parts, all_of(parts), std::move(handler));
}

void need(const error_code& error) {
  if (error) throw asio::system_error(error);
}

void run(asio::io_context& context, Wait wait) {
  if (wait == Wait::blocking) {
    context.run();
    return;
  }
  for (auto idle = Clock::now(); !context.stopped();) {
    if (context.poll() != 0) {
      idle = Clock::now();
    } else if (Clock::now() - idle > spin_bound) {
      context.run_one();
      idle = Clock::now();
    }
  }
}

// Copies the first eight bytes of a message: the number of the call, which the answer repeats.
void copy_number(char* to, const char* from) { std::memcpy(to, from, sizeof(std::uint64_t)); }
void put_number(char* to, std::uint64_t number) { std::memcpy(to, &number, sizeof number); }
std::uint64_t number_of(const char* from) {
  std::uint64_t number;
  std::memcpy(&number, from, sizeof number);
  return number;
}

// Receives requests and answers them. If the work has a tensor, it follows the request. The server ends when
// its client closes the connection.
template <class Protocol>
class Server {
 public:
  Server(typename Protocol::socket socket, const Work& work)
      : socket_(std::move(socket)),
        shape_(shape_of(work)),
        batches_(work.kind == Kind::throughput),
        tensor_(shape_.there),
        requests_(in_flight * shape_.request),
        replies_(in_flight * shape_.reply) {}

  void start() { batches_ ? read_batch() : read_call(); }

 private:
  // Sends the replies to all pending requests in one write.
  void read_batch() {
    const auto room = asio::buffer(requests_) + pending_;
    socket_.async_read_some(room, [this](const error_code& error, std::size_t n) {
      if (error) return;
      pending_ += n;
      const std::size_t whole = pending_ / shape_.request;
      for (std::size_t i = 0; i < whole; ++i)
        copy_number(replies_.data() + i * shape_.reply, requests_.data() + i * shape_.request);
      pending_ -= whole * shape_.request;
      std::memmove(requests_.data(), requests_.data() + whole * shape_.request, pending_);
      asio::async_write(socket_, asio::buffer(replies_, whole * shape_.reply),
                        [this](const error_code& failed, std::size_t) {
                          if (!failed) read_batch();
                        });
    });
  }
  void read_call() {
    const auto head = asio::buffer(requests_, shape_.request);
    read_all(socket_, head, asio::buffer(tensor_), [this](const error_code& error, std::size_t) {
      if (error) return;
      copy_number(replies_.data(), requests_.data());
      write_all(socket_, asio::buffer(replies_, shape_.reply), asio::buffer(tensor_, shape_.back),
                [this](const error_code& failed, std::size_t) {
                  if (!failed) read_call();
                });
    });
  }

  typename Protocol::socket socket_;
  const Shape shape_;
  const bool batches_;
  std::vector<char> tensor_, requests_, replies_;
  std::size_t pending_ = 0;
};

template <class Protocol>
class Client {
 public:
  Client(typename Protocol::socket socket, const Work& work, const Budget& budget)
      : socket_(std::move(socket)),
        work_(work),
        shape_(shape_of(work)),
        latency_(budget),
        rate_(budget),
        tensor_(shape_.there, 1),
        back_(shape_.back),
        requests_(in_flight * shape_.request),
        replies_(in_flight * shape_.reply) {}

  void start() {
    if (work_.kind != Kind::throughput) return call();
    send(in_flight);
    receive();
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
    put_number(requests_.data(), ++sent_);
    const auto head = asio::buffer(requests_, shape_.request);
    write_all(socket_, head, asio::buffer(tensor_), [this](const error_code& error, std::size_t) {
      need(error);
      read_all(socket_, asio::buffer(replies_, shape_.reply), asio::buffer(back_),
               [this](const error_code& failed, std::size_t) {
                 need(failed);
                 expect_answer(number_of(replies_.data()) == sent_ && (back_.empty() || back_.back() == 1));
                 if (work_.kind == Kind::bulk ? rate_.count(1) : latency_.end()) call();
               });
    });
  }

  // Starts as many new calls as have completed, in one write. Calls that complete during the write are
  // replaced by the next one.
  void receive() {
    socket_.async_read_some(asio::buffer(replies_) + pending_,
                            [this](const error_code& error, std::size_t n) {
                              need(error);
                              pending_ += n;
                              const std::size_t ended = pending_ / shape_.reply;
                              for (std::size_t i = 0; i < ended; ++i)
                                expect_answer(number_of(replies_.data() + i * shape_.reply) == ++answered_);
                              pending_ -= ended * shape_.reply;
                              std::memmove(replies_.data(), replies_.data() + ended * shape_.reply, pending_);
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
    for (std::size_t i = 0; i < due_; ++i) put_number(requests_.data() + i * shape_.request, ++sent_);
    asio::async_write(socket_, asio::buffer(requests_, std::exchange(due_, 0) * shape_.request),
                      [this](const error_code& error, std::size_t) {
                        need(error);
                        writing_ = false;
                        if (!enough_) send(0);
                      });
  }

  typename Protocol::socket socket_;
  const Work& work_;
  const Shape shape_;
  LatencyMeter latency_;
  RateMeter rate_;
  std::vector<char> tensor_, back_, requests_, replies_;
  std::uint64_t sent_ = 0, answered_ = 0;
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
  Server<Protocol> server(std::move(socket), work);
  server.start();
  run(context, work.wait);
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
  run(context, work.wait);
  end.report(client.figures());
}

}  // namespace

std::optional<Contender> asio_peer(const Work& work) {
  if (!is_plain(work.kind) || work.kind == Kind::get)
    return std::nullopt;  // get() does not apply: with callbacks, no thread waits for a result
  if (work.wire != Wire::tcp && work.wire != Wire::unix_socket) return std::nullopt;
  const std::string peer = work.wait == Wait::spinning ? "asio-spin" : "asio";
  const Notes notes = notes_of(work.wait, "callback on the loop");
  const auto loopback = asio::ip::address_v4::loopback();
  if (work.wire == Wire::unix_socket)
    return contender(peer, notes,
                     {.serve = [=](ServerEnd& end) { serve<Local>(work, scratch_path(".sock"), end); },
                      .measure = [=](ClientEnd& end) { measure<Local>(work, end.address(), end); }});
  return contender(peer, notes,
                   {.serve = [=](ServerEnd& end) { serve<Tcp>(work, {loopback, 0}, end); },
                    .measure =
                        [=](ClientEnd& end) {
                          const auto port = static_cast<std::uint16_t>(std::stoi(end.address()));
                          measure<Tcp>(work, {loopback, port}, end);
                        }});
}

}  // namespace weft::bench
