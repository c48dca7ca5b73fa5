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
class SocketListener final : public Listener {
 public:
  using Acceptor = asio::basic_socket_acceptor<Protocol>;
  using Socket = asio::basic_stream_socket<Protocol>;
  using Admit = std::function<void(Socket, const std::shared_ptr<Loop>&)>;  // called on the acceptor's loop

  // `cleanup` runs after the acceptor has closed.
  SocketListener(Acceptor acceptor, std::shared_ptr<Loop> loop, Address address, Transport::PickLoop pick,
                 Admit admit, std::function<void()> cleanup)
      : address_(std::move(address)),
        cleanup_(std::move(cleanup)),
        state_(std::make_shared<State>(
            State{std::move(acceptor), std::move(loop), std::move(pick), std::move(admit)})) {
    state_->loop->post([state = state_] { accept(state); });
  }
  ~SocketListener() override { close(); }

  const Address& address() const override { return address_; }

  void close() override {
    if (state_ == nullptr) return;
    auto state = std::exchange(state_, nullptr);
    const auto end = [state] {
      asio::error_code ignored;
      state->acceptor.close(ignored);
      state->admit = nullptr;
    };
    const auto* asio = dynamic_cast<AsioLoop*>(state->loop.get());
    if (state->loop->running_here() || (asio != nullptr && !asio->owns_thread())) {
      // If the program runs the io_context itself, it may have stopped doing so, and a posted job would not
      // run. AgentCore::shut_down() has the loop for its turn, so the acceptor can be closed here.
      end();
    } else {
      std::promise<void> done;
      state->loop->post([&] {
        end();
        done.set_value();
      });
      done.get_future().wait();
    }
    if (cleanup_) cleanup_();
  }

 private:
  struct State {
    Acceptor acceptor;
    std::shared_ptr<Loop> loop;
    Transport::PickLoop pick;
    Admit admit;
  };

  static void accept(const std::shared_ptr<State>& state) {
    if (!state->acceptor.is_open()) return;
    auto loop = state->pick();
    if (loop == nullptr) return;
    auto socket = std::make_shared<Socket>(io_context_of(*loop));
    state->acceptor.async_accept(*socket, [state, loop, socket](const asio::error_code& error) {
      state->loop->run_turn([&] { accepted(state, loop, *socket, error); });
    });
  }
  static void accepted(const std::shared_ptr<State>& state, const std::shared_ptr<Loop>& loop, Socket& socket,
                       const asio::error_code& error) {
    if (!state->acceptor.is_open()) return;
    if (!error) {
      state->admit(std::move(socket), loop);
    } else if (error != asio::error::connection_aborted) {
      // Out of descriptors or memory: accepting again at once would spin, so retry after a delay.
      state->loop->schedule(state->loop->now() + std::chrono::milliseconds(50), [state] { accept(state); });
      return;
    }
    accept(state);
  }

  Address address_;
  std::function<void()> cleanup_;
  std::shared_ptr<State> state_;
};

}  // namespace weft::rpc
