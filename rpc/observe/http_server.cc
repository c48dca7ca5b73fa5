#include <weft/rpc/observe/http_server.h>

#include <weft/rpc/core/error.h>
#include <weft/rpc/transport/address.h>

#include <asio/buffer.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/post.hpp>
#include <asio/read_until.hpp>
#include <asio/steady_timer.hpp>
#include <asio/write.hpp>

#include <algorithm>
#include <chrono>
#include <list>
#include <thread>

namespace weft::observe {
namespace {

using asio::ip::tcp;

constexpr std::size_t longest_request = 8192;  // bytes
constexpr std::size_t max_connections = 64;
constexpr auto timeout = std::chrono::seconds{5};  // to read a request, and to write its reply

std::string_view phrase_of(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 503:
      return "Service Unavailable";
    default:
      return "Internal Server Error";
  }
}

// "GET /metrics?x HTTP/1.1"; empty if the line is malformed.
struct RequestLine {
  std::string_view method, path;

  static RequestLine parse(std::string_view text) {
    const std::string_view line = text.substr(0, text.find("\r\n"));
    const auto first = line.find(' '), second = line.find(' ', first + 1);
    if (first == std::string_view::npos || second == std::string_view::npos) return {};
    if (!line.substr(second + 1).starts_with("HTTP/1.")) return {};
    std::string_view path = line.substr(first + 1, second - first - 1);
    path = path.substr(0, path.find('?'));
    if (!path.starts_with('/')) return {};
    return {line.substr(0, first), path};
  }
};

HttpReply reply_to(const RequestLine& request, const HttpServer::Pages& pages) {
  if (request.path.empty()) return {400, {}, "no request of HTTP/1.1\n"};
  if (request.method != "GET" && request.method != "HEAD") return {405, {}, "only GET\n"};
  const auto page = pages.find(std::string(request.path));
  if (page == pages.end()) {
    std::string all;
    for (const auto& [path, make] : pages) all += path + "\n";
    return {404, {}, "here are:\n" + all};
  }
  try {
    return page->second();
  } catch (const std::exception& error) {
    return {500, {}, std::string(error.what()) + "\n"};
  }
}

std::string text_of(const HttpReply& reply, bool with_body) {
  std::string text = "HTTP/1.1 " + std::to_string(reply.status) + " ";
  text += phrase_of(reply.status);
  text += "\r\nContent-Type: " + (reply.type.empty() ? "text/plain; charset=utf-8" : reply.type);
  text += "\r\nContent-Length: " + std::to_string(reply.body.size());
  if (reply.status == 405) text += "\r\nAllow: GET, HEAD";
  text += "\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n";
  if (with_body) text += reply.body;
  return text;
}

tcp::acceptor bind(asio::io_context& context, const rpc::Address& address, bool remote) {
  asio::error_code failure = asio::error::host_not_found;
  for (const auto& entry : tcp::resolver(context).resolve(address.host, address.port)) {
    if (!remote && !entry.endpoint().address().is_loopback())
      throw rpc::Error(rpc::ErrorKind::permission_denied,
                       "answering at " + address.host + " would tell any host: `remote` accepts that");
    try {
      return tcp::acceptor(context, entry.endpoint());
    } catch (const asio::system_error& error) {
      failure = error.code();
    }
  }
  throw asio::system_error(failure);
}

}  // namespace

// One request and its reply. Used on the server's thread.
class HttpServer::Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(tcp::socket socket, const HttpServer::Pages& pages, std::list<std::shared_ptr<Exchange>>& open)
      : socket_(std::move(socket)), timer_(socket_.get_executor()), pages_(pages), open_(open) {}

  void start() {
    open_.push_back(shared_from_this());
    wait();
    asio::async_read_until(
        socket_, asio::dynamic_buffer(request_, longest_request), "\r\n\r\n",
        [self = shared_from_this()](const asio::error_code& error, std::size_t) { self->answer(error); });
  }

  bool asked() const { return asked_; }  // the request was received

  void close() {
    asio::error_code ignored;
    timer_.cancel();
    socket_.close(ignored);
    open_.remove(shared_from_this());
  }

 private:
  void wait() {
    timer_.expires_after(timeout);
    timer_.async_wait([weak = weak_from_this()](const asio::error_code& error) {
      const auto self = weak.lock();
      if (!error && self != nullptr) self->close();
    });
  }

  void answer(const asio::error_code& error) {
    if (error && error != asio::error::not_found) return close();  // not_found: the request is too long
    asked_ = true;
    const RequestLine request = error ? RequestLine{} : RequestLine::parse(request_);
    reply_ = text_of(reply_to(request, pages_), request.method != "HEAD");
    wait();
    asio::async_write(socket_, asio::buffer(reply_),
                      [self = shared_from_this()](const asio::error_code&, std::size_t) { self->finish(); });
  }

  // Reads the rest that the other side sends; otherwise its system would drop the reply with the connection.
  void finish() {
    asio::error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
    request_.resize(longest_request);
    read_on();
  }
  void read_on() {
    socket_.async_read_some(asio::buffer(request_),
                            [self = shared_from_this()](const asio::error_code& error, std::size_t) {
                              if (error) return self->close();
                              self->read_on();
                            });
  }

  tcp::socket socket_;
  asio::steady_timer timer_;
  const HttpServer::Pages& pages_;
  std::list<std::shared_ptr<Exchange>>& open_;  // the oldest first
  std::string request_, reply_;
  bool asked_ = false;
};

struct HttpServer::State {
  State(const rpc::Address& address, Pages made, bool remote)
      : pages(std::move(made)), acceptor(bind(context, address, remote)), pause(context) {}

  void accept() {
    acceptor.async_accept([this](const asio::error_code& error, tcp::socket socket) {
      if (!acceptor.is_open()) return;
      if (error) {  // for example no descriptors: other connections may close
        pause.expires_after(std::chrono::milliseconds{100});
        pause.async_wait([this](const asio::error_code& stopped) {
          if (!stopped) accept();
        });
        return;
      }
      if (open.size() >= max_connections) make_room();
      std::make_shared<Exchange>(std::move(socket), pages, open)->start();
      accept();
    });
  }

  void make_room() {
    const auto silent =
        std::find_if(open.begin(), open.end(), [](const auto& exchange) { return !exchange->asked(); });
    const auto oldest = silent != open.end() ? *silent : open.front();  // a copy: close() erases it
    oldest->close();
  }

  const Pages pages;
  std::list<std::shared_ptr<Exchange>> open;  // used on the thread; the oldest first
  asio::io_context context;
  tcp::acceptor acceptor;
  asio::steady_timer pause;
  std::thread thread;
};

HttpServer::HttpServer(const std::string& address, Pages pages, bool remote) {
  const rpc::Address parsed =
      rpc::Address::parse(rpc::Address::looks_like(address) ? address : "tcp://" + address);
  if (parsed.scheme != "tcp")
    throw rpc::Error(rpc::ErrorKind::invalid_argument, "HTTP is answered at host:port, not at " + address);
  try {
    state_ = std::make_unique<State>(parsed, std::move(pages), remote);
  } catch (const asio::system_error& error) {
    throw rpc::Error(rpc::ErrorKind::unavailable, "cannot listen on " + address + ": " + error.what());
  }
  const auto bound = state_->acceptor.local_endpoint();
  address_ =
      rpc::Address{"tcp", bound.address().to_string(), std::to_string(bound.port()), {}}.text().substr(6);
  state_->accept();
  state_->thread = std::thread([state = state_.get()] { state->context.run(); });
}

HttpServer::~HttpServer() {
  state_->context.stop();
  state_->thread.join();
  state_->open.clear();
}

}  // namespace weft::observe
