// StreamListener<Protocol>: accepts stream connections and hands each to the loop picked for it.
#pragma once

#include <weft/rpc/transport/internal/socket_stream.h>
#include <weft/rpc/transport/stream_connection.h>
#include <weft/rpc/transport/transport.h>

#include <asio/basic_socket_acceptor.hpp>
#include <asio/post.hpp>

#include <future>

namespace weft::rpc {

template <class Protocol>
class StreamListener final : public Listener {
 public:
  using Acceptor = asio::basic_socket_acceptor<Protocol>;
  using Socket = asio::basic_stream_socket<Protocol>;
  using Prepare = std::function<std::string(Socket&)>;  // sets options, describes

  StreamListener(Acceptor acceptor, std::shared_ptr<Loop> loop, Address address, Transport::PickLoop pick,
                 const ConnectionOptions& options, Transport::Accepted accepted, Prepare prepare,
                 std::function<void()> cleanup)
      : address_(std::move(address)),
        cleanup_(std::move(cleanup)),
        state_(std::make_shared<State>(State{std::move(acceptor), std::move(loop), std::move(pick), options,
                                             std::move(accepted), std::move(prepare)})) {
    state_->loop->post([state = state_] { accept(state); });
  }
  ~StreamListener() override { close(); }

  const Address& address() const override { return address_; }

  void close() override {
    if (state_ == nullptr) return;
    auto state = std::exchange(state_, nullptr);
    const auto end = [state] {
      asio::error_code ignored;
      state->acceptor.close(ignored);
      state->accepted = nullptr;
    };
    auto& loop = asio_loop(*state->loop);
    if (loop.running_here() || !loop.owns_thread()) {
      // On the program's io_context nobody may be running it any more; an agent there is closed on its
      // thread.
      end();
    } else {
      std::promise<void> done;
      loop.post([&] {
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
    ConnectionOptions options;
    Transport::Accepted accepted;
    Prepare prepare;
  };

  static void accept(const std::shared_ptr<State>& state) {
    if (!state->acceptor.is_open()) return;
    auto loop = state->pick();
    if (loop == nullptr) return;
    auto socket = std::make_shared<Socket>(asio_loop(*loop).context());
    state->acceptor.async_accept(*socket, [state, loop, socket](const asio::error_code& error) {
      if (!state->acceptor.is_open()) return;
      if (!error) {
        std::string description = state->prepare(*socket);
        auto connection = std::make_shared<StreamConnection>(
            std::make_unique<SocketStream<Protocol>>(std::move(*socket), loop, std::move(description)), loop,
            state->options);
        loop->post([accepted = state->accepted, connection] { accepted(connection); });
      } else if (error != asio::error::connection_aborted) {
        // Out of descriptors or memory: accepting again at once would spin. Try again a little later.
        state->loop->schedule(state->loop->now() + std::chrono::milliseconds(50), [state] { accept(state); });
        return;
      }
      accept(state);
    });
  }

  Address address_;
  std::function<void()> cleanup_;
  std::shared_ptr<State> state_;
};

}  // namespace weft::rpc
