#include <weft/rpc/observe/http_server.h>

#include <weft/rpc/core/error.h>
#include <weft/rpc/core/mutex.h>
#include <weft/rpc/transport/address.h>

#include <civetweb.h>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>

#include <chrono>
#include <fstream>
#include <future>
#include <string_view>

namespace weft::observe {
namespace {

using asio::ip::tcp;

HttpReply reply_to(const mg_request_info& request, const HttpServer::Pages& pages) {
  const std::string_view method = request.request_method;
  if (method != "GET" && method != "HEAD") return {405, {}, "only GET and HEAD are supported\n"};
  const auto page = pages.find(std::string(request.local_uri));
  if (page == pages.end()) {
    std::string all;
    for (const auto& [path, make] : pages) all += path + "\n";
    return {404, {}, "not found; the paths are:\n" + all};
  }
  try {
    return page->second();
  } catch (const std::exception& error) {
    return {500, {}, std::string(error.what()) + "\n"};
  } catch (...) {  // no exception may pass through civetweb, which is C
    return {500, {}, "unknown exception\n"};
  }
}

void send(mg_connection* connection, const HttpReply& reply, bool with_body = true) {
  std::string text = "HTTP/1.1 " + std::to_string(reply.status) + " ";
  text += mg_get_response_code_text(connection, reply.status);
  text += "\r\nContent-Type: " + (reply.type.empty() ? "text/plain; charset=utf-8" : reply.type);
  text += "\r\nContent-Length: " + std::to_string(reply.body.size());
  if (reply.status == 405) text += "\r\nAllow: GET, HEAD";
  text += "\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n";
  if (with_body) text += reply.body;
  mg_write(connection, text.data(), text.size());
}

constexpr const char* realm = "weft";

// Whether the file has a line "user:realm:hash" with the realm of this server.
bool has_user(const std::string& password_file) {
  std::ifstream file(password_file);
  for (std::string line; std::getline(file, line);)
    if (!line.starts_with(':') && line.find(":" + std::string(realm) + ":") != std::string::npos) return true;
  return false;
}

// Whether the Host header of a request, without its port, is "localhost" or the host of the server's address.
bool is_own(std::string_view asked, std::string_view host) {
  const auto colon = asked.rfind(':');
  if (colon != std::string_view::npos && asked.find(']', colon) == std::string_view::npos)
    asked = asked.substr(0, colon);
  return asked == "localhost" || asked == host;
}

}  // namespace

struct HttpServer::State {
  State(Pages made, HttpAccess given) : pages(std::move(made)), access(std::move(given)) {}

  // If the request is not permitted, sends the refusal and returns its status. 0: the request is permitted.
  int refused(mg_connection* connection) const {
    const char* asked = mg_get_header(connection, "Host");
    if (access.own_host_only && !is_own(asked == nullptr ? "" : asked, host)) {
      send(connection, {403, {}, "the Host header is neither " + host + " nor localhost\n"});
      return 403;
    }
    if (access.password_file.empty() ||
        mg_check_digest_access_authentication(connection, realm, access.password_file.c_str()) == 1)
      return 0;
    mg_send_digest_access_authentication_request(connection, realm);
    return 401;
  }

  // Called by civetweb, on its threads, for each request that it has parsed. Returns the status, so that
  // civetweb itself sends no reply and serves no files.
  static int answer(mg_connection* connection) {
    State& state = *static_cast<State*>(mg_get_user_data(mg_get_context(connection)));
    if (const int status = state.refused(connection); status != 0) return status;
    const mg_request_info& request = *mg_get_request_info(connection);
    HttpReply reply;
    {
      const rpc::MutexLock one_at_a_time(state.making);
      reply = reply_to(request, state.pages);
    }
    send(connection, reply, request.request_method != std::string_view("HEAD"));
    return reply.status;
  }

  // Called by civetweb for bytes that it cannot parse. Returns 0: the reply was sent.
  static int refuse(mg_connection* connection, int status, const char* why) {
    send(connection, {status, {}, std::string(why) + "\n"});
    return 0;
  }

  // Called by civetweb before it logs an error. Returns 1, so that civetweb writes nothing to stderr.
  static int note(const mg_connection* connection, const char* message) {
    const mg_context* context = mg_get_context(connection);
    if (context == nullptr) return 1;  // the message belongs to no server
    State& state = *static_cast<State*>(mg_get_user_data(context));
    const rpc::MutexLock lock(state.making);
    if (state.problem.empty()) state.problem = message;
    return 1;
  }

  // false: civetweb cannot listen there, and `problem` is the reason.
  bool start(const tcp::endpoint& endpoint) {
    host = endpoint.address().to_string();
    if (endpoint.address().is_v6()) host = "[" + host + "]";
    const std::string port = host + ":" + std::to_string(endpoint.port());
    // A silent connection occupies a thread until the timeout, and civetweb does not limit the connections of
    // a client. So there are more threads than a few clients have connections; a thread has 100 KB of stack,
    // of which it uses a few KB.
    const char* options[] = {"listening_ports",
                             port.c_str(),  //
                             "num_threads",
                             "256",  // each reads a request or writes a reply
                             "connection_queue",
                             "256",  // connections that wait for a thread
                             "request_timeout_ms",
                             "2000",  //
                             "max_request_size",
                             "8192",  // bytes
                             nullptr};
    mg_callbacks callbacks{};
    callbacks.begin_request = &State::answer;
    callbacks.http_error = &State::refuse;
    callbacks.log_message = &State::note;
    mg_init_data init{};
    init.callbacks = &callbacks;
    init.user_data = this;
    init.configuration_options = options;
    context = mg_start2(&init, nullptr);
    return context != nullptr;
  }

  const Pages pages;
  const HttpAccess access;
  std::string host;  // of the server's address; set before it starts
  rpc::Mutex making;
  std::string problem WEFT_GUARDED_BY(making);
  mg_context* context = nullptr;
};

HttpServer::HttpServer(const std::string& address, Pages pages, HttpAccess access)
    : state_(std::make_unique<State>(std::move(pages), std::move(access))) {
  const rpc::Address parsed =
      rpc::Address::parse(rpc::Address::looks_like(address) ? address : "tcp://" + address);
  if (parsed.scheme != "tcp")
    throw rpc::Error(rpc::ErrorKind::invalid_argument, "HttpServer: expected host:port, found " + address);
  if (!state_->access.password_file.empty() && !has_user(state_->access.password_file))
    throw rpc::Error(rpc::ErrorKind::invalid_argument,
                     "no user of the realm " + std::string(realm) + " in " + state_->access.password_file +
                         ": make the file with htdigest -c FILE " + realm + " USER");
  static const unsigned features =
      // Called once, because it must not be called by two threads at the same time.
      mg_init_library(MG_FEATURES_DEFAULT);
  (void)features;

  asio::io_context context;
  asio::error_code failure;
  state_->problem = "the host has no address";
  for (const auto& entry : tcp::resolver(context).resolve(parsed.host, parsed.port, failure)) {
    const tcp::endpoint endpoint = entry.endpoint();
    if (!state_->access.remote && !endpoint.address().is_loopback())
      throw rpc::Error(rpc::ErrorKind::permission_denied,
                       "listening on " + address + " would answer any host: set `remote` to accept that");
    if (endpoint.address().is_v6() && mg_check_feature(MG_FEATURES_IPV6) == 0) {
      state_->problem = "civetweb was built without IPv6";
      continue;
    }
    state_->problem.clear();
    if (!state_->start(endpoint)) continue;
    mg_server_port bound{};
    mg_get_server_ports(state_->context, 1, &bound);
    address_ =
        rpc::Address{"tcp", endpoint.address().to_string(), std::to_string(bound.port), {}}.text().substr(6);
    return;
  }
  throw rpc::Error(rpc::ErrorKind::unavailable,
                   "cannot listen on " + address + ": " + (failure ? failure.message() : state_->problem));
}

HttpServer::~HttpServer() {
  // civetweb's accepting thread reads the stop flag every 2 s, and when a connection arrives. So the
  // destructor connects until civetweb has stopped. It sets the flag first: when civetweb 1.15 stops, it does
  // not close a connection that it has accepted and has not read from.
  const auto stopped = std::async(std::launch::async, [this] { mg_stop(state_->context); });
  const rpc::Address bound = rpc::Address::parse("tcp://" + address_);
  const tcp::endpoint endpoint(asio::ip::make_address(bound.host),
                               static_cast<asio::ip::port_type>(std::stoul(bound.port)));
  asio::io_context context;
  while (stopped.wait_for(std::chrono::milliseconds{5}) != std::future_status::ready) {
    tcp::socket socket(context);
    asio::error_code refused;
    socket.connect(endpoint, refused);
  }
}

}  // namespace weft::observe
