// An HTTP server for tests whose replies are scripted byte by byte, to test a client against replies that no
// real server would send.
#pragma once

#include <weft/rpc/core/asio_loop.h>
#include <weft/rpc/testing/wait.h>

#include <asio/ip/tcp.hpp>
#include <asio/read.hpp>
#include <asio/read_until.hpp>
#include <asio/streambuf.hpp>
#include <asio/write.hpp>

#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>

namespace weft::test {

class ScriptedHttpServer {
 public:
  struct Request {
    std::string target, body;
    int connection = 0;  // the number of the connection that carried it, from 1
  };
  // The reply to one request: the bytes to send, and whether the connection is then closed. Empty: no reply.
  struct Answer {
    std::string bytes;
    bool close = false;
  };
  using Script = std::function<Answer(const Request&)>;  // on the server's loop

  static std::string ok(const std::string& body) {
    return "HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  }
  static std::string status(int status, const std::string& body) {
    return "HTTP/1.1 " + std::to_string(status) + " No\r\nContent-Length: " + std::to_string(body.size()) +
           "\r\n\r\n" + body;
  }
  static std::string chunk(const std::string& bytes) {
    char size[20];
    std::snprintf(size, sizeof size, "%zx\r\n", bytes.size());
    return size + bytes + "\r\n";
  }
  static constexpr const char* chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";

  explicit ScriptedHttpServer(Script script) : state_(std::make_shared<State>()) {
    state_->script = std::move(script);
    state_->acceptor = std::make_unique<asio::ip::tcp::acceptor>(
        loop_->context(), asio::ip::tcp::endpoint(asio::ip::address_v4::loopback(), 0));
    port_ = state_->acceptor->local_endpoint().port();
    loop_->post([state = state_] { accept(state); });
  }
  ~ScriptedHttpServer() {
    Event closed;
    loop_->post([&] {
      state_->acceptor->close();
      state_->close_all();
      closed.set();
    });
    closed.wait();
    loop_->stop();
  }

  std::string port() const { return std::to_string(port_); }
  std::string server() const { return "127.0.0.1:" + port(); }
  int connections() const {
    return on_loop([](State& state) { return state.connections; });
  }
  void close_connections() const {
    on_loop([](State& state) { return state.close_all(), 0; });
  }
  // Sends more of an unfinished reply to every open connection.
  void send(const std::string& bytes) const {
    on_loop([&](State& state) {
      for (const auto& socket : state.open) {
        asio::error_code ignored;
        asio::write(*socket, asio::buffer(bytes), ignored);
      }
      return 0;
    });
  }

 private:
  using Socket = asio::ip::tcp::socket;
  struct State {
    Script script;
    std::unique_ptr<asio::ip::tcp::acceptor> acceptor;
    std::set<std::shared_ptr<Socket>> open;
    int connections = 0;

    void close_all() {
      for (const auto& socket : std::exchange(open, {})) {
        asio::error_code ignored;
        socket->shutdown(Socket::shutdown_both, ignored);
        socket->close(ignored);
      }
    }
  };

  template <class F>
  int on_loop(F f) const {
    Handover<int> result;
    loop_->post([&] { result.give(f(*state_)); });
    return result.take();
  }
  static void accept(const std::shared_ptr<State>& state) {
    state->acceptor->async_accept([state](const asio::error_code& error, Socket socket) {
      if (error) return;
      auto shared = std::make_shared<Socket>(std::move(socket));
      state->open.insert(shared);
      read(state, shared, std::make_shared<asio::streambuf>(), ++state->connections);
      accept(state);
    });
  }
  static void read(const std::shared_ptr<State>& state, const std::shared_ptr<Socket>& socket,
                   const std::shared_ptr<asio::streambuf>& buffer, int connection) {
    asio::async_read_until(
        *socket, *buffer, "\r\n\r\n", [=](const asio::error_code& error, std::size_t size) {
          if (error) return close(state, socket);
          const std::string head(asio::buffers_begin(buffer->data()),
                                 asio::buffers_begin(buffer->data()) + static_cast<std::ptrdiff_t>(size));
          buffer->consume(size);
          const std::string name = "Content-Length: ";
          const std::size_t length = std::stoul(head.substr(head.find(name) + name.size()));
          const std::size_t missing = length > buffer->size() ? length - buffer->size() : 0;
          const std::size_t target = head.find(' ') + 1;
          Request request{head.substr(target, head.find(' ', target) - target), {}, connection};
          asio::async_read(*socket, *buffer, asio::transfer_exactly(missing),
                           [=](const asio::error_code& cut, std::size_t) mutable {
                             if (cut) return close(state, socket);
                             request.body.assign(
                                 asio::buffers_begin(buffer->data()),
                                 asio::buffers_begin(buffer->data()) + static_cast<std::ptrdiff_t>(length));
                             buffer->consume(length);
                             const Answer answer = state->script(request);
                             asio::error_code ignored;
                             asio::write(*socket, asio::buffer(answer.bytes), ignored);
                             if (answer.close) return close(state, socket);
                             read(state, socket, buffer, connection);
                           });
        });
  }
  static void close(const std::shared_ptr<State>& state, const std::shared_ptr<Socket>& socket) {
    state->open.erase(socket);
    asio::error_code ignored;
    socket->shutdown(Socket::shutdown_both, ignored);
    socket->close(ignored);
  }

  std::shared_ptr<rpc::AsioLoop> loop_ = std::make_shared<rpc::AsioLoop>();
  std::shared_ptr<State> state_;
  std::uint16_t port_ = 0;
};

}  // namespace weft::test
