// SocketListener<Protocol>: accepts sockets, picks a loop for each, and passes both to `admit`.
#pragma once

#include <weft/rpc/core/asio_loop.h>
#include <weft/rpc/transport/transport.h>

#include <asio/basic_socket_acceptor.hpp>
#include <asio/basic_stream_socket.hpp>

#include <chrono>
#include <future>
#include <memory>

namespace weft::rpc {

template <class Protocol>
class SocketListener final : public std::enable_shared_from_this<SocketListener<Protocol>> {
 public:
  using Acceptor = asio::basic_socket_acceptor<Protocol>;
  using Socket = asio::basic_stream_socket<Protocol>;
  using Admit = std::function<void(Socket, const std::shared_ptr<Loop>&)>;  // called on the acceptor's loop

  // open: (asio::io_context&, Address&) -> Acceptor. It may complete the address. If it throws
  // asio::system_error, make() throws unavailable. cleanup: runs after the acceptor has closed.
  template <class Open>
  static std::unique_ptr<Listener> make(Address address, Transport::PickLoop pick, Open open, Admit admit,
                                        Callback cleanup) {
    auto loop = pick();
    try {
      auto acceptor = open(io_context_of(*loop), address);
      const auto self = std::make_shared<SocketListener>(std::move(acceptor), std::move(loop),
                                                         std::move(pick), std::move(admit));
      self->loop_->post([self] { self->accept(); });
      return std::make_unique<Listener>(std::move(address), [self, cleanup = std::move(cleanup)]() mutable {
        self->close();
        cleanup();
      });
    } catch (const asio::system_error& error) {
      throw Error(ErrorKind::unavailable, "cannot listen on " + address.text() + ": " + error.what());
    }
  }

  SocketListener(Acceptor acceptor, std::shared_ptr<Loop> loop, Transport::PickLoop pick, Admit admit)
      : acceptor_(std::move(acceptor)),
        loop_(std::move(loop)),
        pick_(std::move(pick)),
        admit_(std::move(admit)) {}

 private:
  void close() {
    const auto end = [this] {
      asio::error_code ignored;
      acceptor_.close(ignored);
      admit_ = nullptr;
    };
    // If the program runs the io_context itself, it may have stopped doing so, and a posted job would not
    // run. AgentCore::shut_down() has the loop for its turn, so the acceptor can be closed here.
    if (loop_->running_here() || !loop_->owns_thread()) return end();
    std::promise<void> done;
    loop_->post([&] {
      end();
      done.set_value();
    });
    done.get_future().wait();
  }

  void accept() {
    if (!acceptor_.is_open()) return;
    auto loop = pick_();
    if (loop == nullptr) return;
    auto socket = std::make_shared<Socket>(io_context_of(*loop));
    acceptor_.async_accept(*socket,
                           [self = this->shared_from_this(), loop, socket](const asio::error_code& error) {
                             self->loop_->run_turn([&] { self->accepted(loop, *socket, error); });
                           });
  }
  void accepted(const std::shared_ptr<Loop>& loop, Socket& socket, const asio::error_code& error) {
    if (!acceptor_.is_open()) return;
    if (!error) {
      admit_(std::move(socket), loop);
    } else if (error != asio::error::connection_aborted) {
      // Out of descriptors or memory: accepting again at once would spin, so retry after a delay.
      loop_->schedule(loop_->now() + std::chrono::milliseconds(50),
                      [self = this->shared_from_this()] { self->accept(); });
      return;
    }
    accept();
  }

  Acceptor acceptor_;
  const std::shared_ptr<Loop> loop_;
  const Transport::PickLoop pick_;
  Admit admit_;
};

}  // namespace weft::rpc
