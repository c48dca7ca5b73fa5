// HttpClient: HTTP/1.1 POST to one of several equal servers, over connections that are kept and used again.
//
// It goes to one server until that fails, then to the next. A request that was not sent is tried at all
// servers, and again after a pause, until its time is over; one that may have been executed is repeated only
// if it says so. Failures are `unavailable` and name every server that was tried, and what came of it; what a
// server answers, whatever its status, is a response. Members are called on the loop, callbacks come there;
// after close(), which ends what is under way with shut_down, none comes any more.
#pragma once

#include <weft/rpc/core/error.h>
#include <weft/rpc/core/loop.h>
#include <weft/rpc/core/result.h>

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace weft::rpc::detail {

class HttpConnection;

struct HttpServer {
  std::string host, port;
  std::string text() const;  // "host:port"
};

struct HttpClientOptions {
  std::size_t connections = 8;              // at a time, without those of streams
  std::size_t max_body = 64 * 1024 * 1024;  // of a response that is kept
};

struct HttpRequest {
  std::string target, body;
  Clock::time_point until;              // by then there is an answer, or a failure
  std::chrono::nanoseconds attempt{0};  // how much of that one server has; 0: all
  bool repeatable = false;              // may be executed twice
  std::optional<std::size_t> server;    // only this one, by its place
};

struct HttpResponse {
  unsigned status = 0;
  std::string body;
};

class HttpClient : public std::enable_shared_from_this<HttpClient> {
 public:
  using CallId = std::uint64_t;
  using Done = UniqueFunction<void(Result<HttpResponse>&&)>;
  using Part = UniqueFunction<void(std::string_view)>;

  HttpClient(std::shared_ptr<Loop> loop, std::vector<HttpServer> servers, HttpClientOptions options);
  ~HttpClient();

  CallId post(HttpRequest request, Done done);
  // A response that goes on and on: its body is handed on in parts and not kept. From the first part on the
  // request's times do not count any more. `ended` gets how it ended (a status other than 200 with the body);
  // where `part` throws an Error that is how.
  CallId stream(HttpRequest request, Part part, Done ended);
  void stop(CallId call);  // nothing more is called back
  void next_server() { current_ = (current_ + 1) % servers_.size(); }
  std::size_t server_of(CallId stream) const;  // its place, once a part has come
  void close();

 private:
  struct Call;
  CallId begin(std::shared_ptr<Call> call);
  void start(const std::shared_ptr<Call>& call);
  void connect(const std::shared_ptr<Call>& call);
  void send(const std::shared_ptr<Call>& call);
  void on_part(Call& call, unsigned status, std::string_view part);
  void exchanged(const std::shared_ptr<Call>& call, Result<unsigned>&& status);
  void timed_out(const std::shared_ptr<Call>& call);
  void failed(const std::shared_ptr<Call>& call, const std::string& reason, bool sent);
  void finish(const std::shared_ptr<Call>& call, Result<HttpResponse>&& result);
  void let_go(Call& call);  // of its connection and its timer
  void next_in_line();
  void set_timer(const std::shared_ptr<Call>& call, Clock::time_point when,
                 void (HttpClient::*then)(const std::shared_ptr<Call>&));

  const std::shared_ptr<Loop> loop_;
  const std::vector<HttpServer> servers_;
  const HttpClientOptions options_;
  std::size_t current_ = 0;  // the server that is used until it fails
  std::map<CallId, std::shared_ptr<Call>> calls_;
  CallId last_call_ = 0;
  std::vector<std::shared_ptr<HttpConnection>> idle_;
  std::size_t busy_ = 0;  // connections of calls
  std::deque<std::shared_ptr<Call>> line_;
  bool closed_ = false;
};

}  // namespace weft::rpc::detail
