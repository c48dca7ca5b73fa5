#include <weft/rpc/store/internal/http_client.h>

#include <weft/rpc/core/asio_loop.h>
#include <weft/rpc/core/while_alive.h>
#include <weft/rpc/store/internal/http_connection.h>

#include <algorithm>

namespace weft::rpc::detail {
namespace {

constexpr std::chrono::nanoseconds first_pause = std::chrono::milliseconds{50};
constexpr std::chrono::nanoseconds longest_pause = std::chrono::seconds{1};

}  // namespace

std::string HttpServer::text() const {
  return (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" + port;
}

struct HttpClient::Call {
  CallId id = 0;
  HttpRequest request;
  Part part;  // for a stream
  Done done;
  HttpResponse response;
  std::shared_ptr<HttpConnection> connection;
  std::size_t server = 0;
  std::size_t untried = 0;                        // servers, in this round
  std::map<std::size_t, std::string> tried = {};  // the result of each tried server
  std::chrono::nanoseconds pause = first_pause;
  Loop::TimerId timer = 0;
  bool has_place = false;                // counts as busy
  bool flows = false;                    // a stream, of which a part has been received
  std::exception_ptr refusal = nullptr;  // the response was refused
};

HttpClient::HttpClient(std::shared_ptr<Loop> loop, std::vector<HttpServer> servers, HttpClientOptions options)
    : loop_(std::move(loop)), servers_(std::move(servers)), options_(options) {}

HttpClient::~HttpClient() {
  for (const auto& connection : idle_) connection->close();
  for (const auto& [id, call] : calls_)
    if (call->connection != nullptr) call->connection->close();
}

HttpClient::CallId HttpClient::post(HttpRequest request, Done done) {
  auto call = std::make_shared<Call>();
  call->request = std::move(request);
  call->done = std::move(done);
  return begin(std::move(call));
}

HttpClient::CallId HttpClient::stream(HttpRequest request, Part part, Done ended) {
  auto call = std::make_shared<Call>();
  call->request = std::move(request);
  call->part = std::move(part);
  call->done = std::move(ended);
  return begin(std::move(call));
}

HttpClient::CallId HttpClient::begin(std::shared_ptr<Call> call) {
  call->id = ++last_call_;
  call->untried = servers_.size();
  calls_.emplace(call->id, call);
  if (closed_) {
    finish(call, std::make_exception_ptr(Error(ErrorKind::shut_down, "the client has closed")));
    return 0;
  }
  set_timer(call, call->request.until, &HttpClient::timed_out);  // also while it waits in the queue
  start(call);
  return call->id;
}

void HttpClient::start(const std::shared_ptr<Call>& call) {
  if (!call->part && !call->has_place) {
    if (busy_ >= options_.connections) {
      line_.push_back(call);
      return;
    }
    ++busy_;
    call->has_place = true;
  }
  call->server = call->request.server.value_or(current_);
  auto end = call->request.until;
  if (call->request.attempt > std::chrono::nanoseconds::zero())
    end = std::min(end, loop_->now() + call->request.attempt);
  set_timer(call, end, &HttpClient::timed_out);
  std::erase_if(idle_, [](const auto& connection) { return !connection->usable(); });
  const auto found = std::find_if(idle_.begin(), idle_.end(), [&](const auto& connection) {
    return connection->server() == call->server;
  });
  if (found == idle_.end()) return connect(call);
  call->connection = std::move(*found);
  idle_.erase(found);
  send(call);
}

void HttpClient::connect(const std::shared_ptr<Call>& call) {
  const HttpServer& server = servers_[call->server];
  call->connection = std::make_shared<HttpConnection>(io_context_of(*loop_), call->server);
  call->connection->connect(server.host, server.port,
                            [weak = weak_from_this(), call](const asio::error_code& error) {
                              const auto client = weak.lock();
                              if (client == nullptr || !client->calls_.contains(call->id)) return;
                              if (error) return client->failed(call, error.message(), false);
                              client->send(call);
                            });
}

void HttpClient::send(const std::shared_ptr<Call>& call) {
  const HttpRequest& request = call->request;
  std::string bytes =
      "POST " + request.target + " HTTP/1.1\r\nHost: " + servers_[call->server].text() +
      "\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(request.body.size()) +
      "\r\n\r\n" + request.body;
  call->response = {};
  // The connection belongs to the call: when the call ends, it is closed and calls nothing more. Its
  // callbacks may end the call.
  call->connection->exchange(
      std::move(bytes),
      [this, call](unsigned status, std::string_view part) { on_part(*call, status, part); },
      [this, call](Result<unsigned>&& status) { exchanged(call, std::move(status)); });
}

void HttpClient::on_part(Call& call, unsigned status, std::string_view part) {
  try {
    if (call.part && status == 200) {
      if (!std::exchange(call.flows, true)) loop_->cancel(std::exchange(call.timer, 0));
      return call.part(part);
    }
    if (part.size() > options_.max_body - call.response.body.size())
      throw Error(ErrorKind::resource_exhausted,
                  "a response of more than " + std::to_string(options_.max_body) + " bytes");
    call.response.body += part;
  } catch (const Error&) {
    call.refusal = std::current_exception();
    throw;
  }
}

void HttpClient::exchanged(const std::shared_ptr<Call>& call, Result<unsigned>&& status) {
  if (!calls_.contains(call->id)) return;
  if (status.ok()) {
    call->response.status = status.value();
    return finish(call, std::move(call->response));
  }
  if (call->refusal != nullptr) return finish(call, std::exchange(call->refusal, nullptr));
  try {
    std::rethrow_exception(status.error());
  } catch (const Error& error) {
    failed(call, error.what(), true);
  }
}

void HttpClient::timed_out(const std::shared_ptr<Call>& call) {
  call->timer = 0;
  if (std::erase(line_, call) != 0)
    return finish(
        call, std::make_exception_ptr(Error(ErrorKind::unavailable, "not reached: all connections were busy",
                                            Execution::not_sent)));
  const bool sent = call->connection != nullptr && call->connection->exchanging();
  failed(call, sent ? "no answer" : "no connection", sent);
}

void HttpClient::failed(const std::shared_ptr<Call>& call, const std::string& reason, bool sent) {
  if (call->connection != nullptr) call->connection->close();
  call->tried[call->server] = reason;
  if (call->server == current_) {
    next_server();
    // Other open connections to a failed server are useless, too.
    std::erase_if(idle_, [&](const auto& connection) {
      if (connection->server() != call->server) return false;
      connection->close();
      return true;
    });
  }
  release(*call);
  const auto now = loop_->now();
  const bool again = !call->flows && !call->request.server && (!sent || call->request.repeatable);
  if (again && --call->untried > 0 && now < call->request.until) {
    start(call);
  } else if (again && now + call->pause < call->request.until) {
    call->untried = servers_.size();
    set_timer(call, now + call->pause, &HttpClient::start);
    call->pause = std::min(2 * call->pause, longest_pause);
  } else {
    std::string all;
    for (const auto& [server, what] : call->tried)
      all += (all.empty() ? "" : ", ") + servers_[server].text() + " (" + what + ")";
    finish(call, std::make_exception_ptr(Error(ErrorKind::unavailable, "not reached: " + all,
                                               sent ? Execution::maybe_executed : Execution::not_sent)));
  }
  next_in_line();
}

void HttpClient::finish(const std::shared_ptr<Call>& call, Result<HttpResponse>&& result) {
  calls_.erase(call->id);
  if (call->connection != nullptr) {
    if (call->connection->usable() && !closed_) {
      idle_.push_back(std::move(call->connection));
    } else {
      call->connection->close();
    }
  }
  release(*call);
  Done done = std::move(call->done);
  const auto self = shared_from_this();  // keeps this object while `done` runs
  done(std::move(result));
  next_in_line();
}

void HttpClient::release(Call& call) {
  call.connection = nullptr;
  if (call.timer != 0) loop_->cancel(std::exchange(call.timer, 0));
  if (std::exchange(call.has_place, false)) --busy_;
}

void HttpClient::next_in_line() {
  while (!line_.empty() && busy_ < options_.connections && !closed_) {
    const auto call = std::move(line_.front());
    line_.pop_front();
    if (calls_.contains(call->id)) start(call);
  }
}

void HttpClient::stop(CallId id) {
  const auto found = calls_.find(id);
  if (found == calls_.end()) return;
  const auto call = std::move(found->second);
  calls_.erase(found);
  if (call->connection != nullptr) call->connection->close();
  release(*call);
  std::erase(line_, call);
  next_in_line();
}

std::size_t HttpClient::server_of(CallId stream) const {
  const auto found = calls_.find(stream);
  return found == calls_.end() ? current_ : found->second->server;
}

void HttpClient::close() {
  closed_ = true;
  for (const auto& connection : std::exchange(idle_, {})) connection->close();
  line_.clear();
  for (const auto& [id, call] : std::exchange(calls_, {}))
    finish(call, std::make_exception_ptr(Error(ErrorKind::shut_down, "the client has closed")));
}

void HttpClient::set_timer(const std::shared_ptr<Call>& call, Clock::time_point when,
                           void (HttpClient::*then)(const std::shared_ptr<Call>&)) {
  if (call->timer != 0) loop_->cancel(call->timer);
  call->timer = loop_->schedule(when, while_alive(this, [call, then](HttpClient& client) {
                                  if (!client.calls_.contains(call->id)) return;
                                  call->timer = 0;
                                  (client.*then)(call);
                                }));
}

}  // namespace weft::rpc::detail
