// A listener on loopback that accepts no connection and whose queue is full: a connect gets no answer, as
// from a host behind a firewall that drops packets.
#pragma once

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>

#include <sys/socket.h>

#include <string>
#include <vector>

namespace weft::test {

class FullBacklog {
 public:
  FullBacklog() {
    acceptor_.open(asio::ip::tcp::v4());
    acceptor_.bind({asio::ip::address_v4::loopback(), 0});
    acceptor_.listen(0);
    const auto there = acceptor_.local_endpoint();
    port_ = std::to_string(there.port());
    for (int i = 0; i < 8; ++i) {  // the queue accepts a few more connections than listen() states
      auto& socket = waiting_.emplace_back(io_);
      socket.open(asio::ip::tcp::v4());
      socket.non_blocking(true);
      (void)::connect(socket.native_handle(), there.data(),
                      static_cast<socklen_t>(there.size()));  // Asio's connect() would wait
    }
  }
  const std::string& port() const { return port_; }
  std::string address() const { return "tcp://127.0.0.1:" + port_; }

 private:
  asio::io_context io_;
  asio::ip::tcp::acceptor acceptor_{io_};
  std::vector<asio::ip::tcp::socket> waiting_;
  std::string port_;
};

}  // namespace weft::test
