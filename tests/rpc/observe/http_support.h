// HTTP over a plain socket, with the exact bytes that a test sends.
#pragma once

#include <asio/connect.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/read.hpp>
#include <asio/write.hpp>

#include <string>

namespace weft::observe::test {

class HttpClient {
 public:
  explicit HttpClient(const std::string& address) : socket_(context_) {
    const auto colon = address.rfind(':');
    asio::ip::tcp::resolver resolver(context_);
    std::string host = address.substr(0, colon);
    if (host.starts_with('[')) host = host.substr(1, host.size() - 2);
    asio::connect(socket_, resolver.resolve(host, address.substr(colon + 1)));
  }
  void send(const std::string& bytes) { asio::write(socket_, asio::buffer(bytes)); }
  // Reads until the other side closes or resets the connection.
  std::string receive() {
    std::string all;
    asio::error_code error;
    asio::read(socket_, asio::dynamic_buffer(all), error);
    return all;
  }

 private:
  asio::io_context context_;
  asio::ip::tcp::socket socket_;
};

struct Answer {
  int status = 0;
  std::string head, body;
};

inline Answer asked(const std::string& address, const std::string& request) {
  HttpClient client(address);
  client.send(request);
  const std::string all = client.receive();
  Answer answer;
  const auto end = all.find("\r\n\r\n");
  if (end == std::string::npos || !all.starts_with("HTTP/1.1 ")) return answer;
  answer.head = all.substr(0, end + 2);
  answer.body = all.substr(end + 4);
  answer.status = std::stoi(all.substr(9));
  return answer;
}

inline Answer get(const std::string& address, const std::string& path) {
  return asked(address, "GET " + path + " HTTP/1.1\r\nHost: " + address + "\r\n\r\n");
}

}  // namespace weft::observe::test
