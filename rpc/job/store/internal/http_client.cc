#include <weft/rpc/job/store/internal/http_client.h>

#include <weft/rpc/core/while_alive.h>
#include <weft/rpc/job/store/internal/curl_multi.h>

#include <algorithm>
#include <array>
#include <system_error>

namespace weft::rpc::detail {
namespace {

constexpr std::chrono::nanoseconds first_pause = std::chrono::milliseconds{50};
constexpr std::chrono::nanoseconds longest_pause = std::chrono::seconds{1};
// TCP's keep-alive, so that a NAT does not drop the connection of a silent stream.
constexpr long keep_alive_seconds = 10;

}  // namespace

std::string HttpAddress::text() const {
  return (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" + port;
}

struct HttpClient::Call {
  Call(HttpClient& c, CallId i, HttpRequest r, Part p, Done d)
      : client(c), id(i), request(std::move(r)), part(std::move(p)), done(std::move(d)) {
    for (const char* header : {"Content-Type: application/json", "Expect:"})  // "Expect:" removes curl's own
      headers.reset(curl_slist_append(headers.release(), header));
  }

  HttpClient& client;
  const CallId id;
  const HttpRequest request;
  Part part;  // for a stream
  Done done;
  HttpResponse response;  // for a stream: the bytes that are not yet passed on
  std::unique_ptr<curl_slist, CurlDelete> headers;
  std::unique_ptr<CURL, CurlDelete> transfer;  // of the current attempt
  std::shared_ptr<CurlMulti> multi;            // runs the transfer
  std::array<char, CURL_ERROR_SIZE> why = {};
  std::size_t server = 0;
  std::size_t untried = 0;                        // servers, in this round
  std::map<std::size_t, std::string> tried = {};  // the result of each tried server
  std::chrono::nanoseconds pause = first_pause;
  Loop::TimerId timer = 0;
  bool has_place = false;  // counts as busy
  bool sent = false;       // in this attempt
  bool executed = false;   // possibly: an earlier attempt was sent
  bool flows = false;      // a stream, of which a part has been received
  bool too_large = false;  // the response

  template <class T>
  void set(CURLoption option, T value) {
    if (curl_easy_setopt(transfer.get(), option, value) != CURLE_OK)
      throw Error(ErrorKind::internal, "libcurl refuses its option " + std::to_string(option));
  }
  void prepare(const HttpAddress& to);
  std::string reason(int result) const;
  unsigned status() const {
    long status = 0;
    curl_easy_getinfo(transfer.get(), CURLINFO_RESPONSE_CODE, &status);
    return static_cast<unsigned>(status);
  }
  Execution execution() const { return executed ? Execution::maybe_executed : Execution::not_sent; }
  bool is_flow() const { return part && status() == 200; }

  // libcurl calls this before it sends the request. If a kept connection was closed without a reply, libcurl
  // would send the request once more, and calls this again.
  static int on_send(void* self, char*, char*, int, int) noexcept {
    auto& call = *static_cast<Call*>(self);
    const bool again = std::exchange(call.sent, true);
    return again && !call.request.repeatable ? CURL_PREREQFUNC_ABORT : CURL_PREREQFUNC_OK;
  }
  static std::size_t on_body(char* bytes, std::size_t, std::size_t size, void* self) noexcept;
};

void HttpClient::Call::prepare(const HttpAddress& to) {
  response = {};
  sent = false;
  why[0] = '\0';
  transfer.reset(curl_easy_init());
  if (transfer == nullptr) throw std::bad_alloc();
  const std::string url = "http://" + to.text() + request.target;
  set(CURLOPT_URL, url.c_str());
  set(CURLOPT_PROXY, "");  // ignores the environment
  set(CURLOPT_HTTP_VERSION, long{CURL_HTTP_VERSION_1_1});
  set(CURLOPT_HTTPHEADER, headers.get());
  set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
  set(CURLOPT_POSTFIELDS, request.body.data());
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_TCP_KEEPALIVE, 1L);
  set(CURLOPT_TCP_KEEPIDLE, keep_alive_seconds);
  set(CURLOPT_TCP_KEEPINTVL, keep_alive_seconds);
  set(CURLOPT_QUICK_EXIT, 1L);  // a name server that does not answer must not block the loop
  set(CURLOPT_ERRORBUFFER, why.data());
  set(CURLOPT_PREREQFUNCTION, &on_send);
  set(CURLOPT_PREREQDATA, this);
  set(CURLOPT_WRITEFUNCTION, &on_body);
  set(CURLOPT_WRITEDATA, this);
}

std::string HttpClient::Call::reason(int result) const {
  long number = 0;
  curl_easy_getinfo(transfer.get(), CURLINFO_OS_ERRNO, &number);
  if (result == CURLE_COULDNT_CONNECT && number != 0)
    return std::generic_category().message(static_cast<int>(number));
  if (result == CURLE_ABORTED_BY_CALLBACK) return "the connection was closed without a reply";  // on_send()
  return why[0] != '\0' ? why.data() : curl_easy_strerror(static_cast<CURLcode>(result));
}

std::size_t HttpClient::Call::on_body(char* bytes, std::size_t, std::size_t size, void* self) noexcept {
  auto& call = *static_cast<Call*>(self);
  HttpClient& client = call.client;
  std::string& body = call.response.body;
  if (call.is_flow()) {
    // Passed on later: `part` may stop the call, which libcurl does not allow here.
    if (body.empty())
      client.loop_->post([&client, weak = client.weak_from_this(), id = call.id] {
        const auto alive = weak.lock();
        if (alive == nullptr) return;
        if (const auto found = client.calls_.find(id); found != client.calls_.end())
          client.pass_on(std::shared_ptr(found->second));
      });
  } else if (size > client.options_.max_body - body.size()) {
    call.too_large = true;
    return 0;  // ends the transfer
  }
  body.append(bytes, size);
  return size;
}

HttpClient::HttpClient(std::shared_ptr<Loop> loop, std::vector<HttpAddress> servers,
                       HttpClientOptions options)
    : loop_(std::move(loop)), servers_(std::move(servers)), options_(options) {}

HttpClient::~HttpClient() {
  for (const auto& [id, call] : calls_) release(*call);
}

HttpClient::CallId HttpClient::begin(HttpRequest request, Part part, Done done) {
  auto call =
      std::make_shared<Call>(*this, ++last_call_, std::move(request), std::move(part), std::move(done));
  call->untried = servers_.size();
  calls_.emplace(call->id, call);
  if (closed_) {
    finish(call, Error(ErrorKind::shut_down, "the client has closed"));
    return 0;
  }
  start(call);
  return call->id;
}

void HttpClient::start(const std::shared_ptr<Call>& call) {
  if (!call->part && !call->has_place) {
    if (busy_ >= options_.connections) {
      line_.push_back(call);
      set_timer(call, call->request.until, &HttpClient::timed_out);
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
  call->prepare(servers_[call->server]);
  if (multi_ == nullptr) multi_ = std::make_shared<CurlMulti>(loop_);
  call->multi = multi_;
  // The transfer belongs to the call: when the call ends, the transfer is stopped.
  multi_->start(call->transfer.get(), [this, call](CURLcode result) { transferred(call, result); });
}

void HttpClient::pass_on(const std::shared_ptr<Call>& call) {
  const std::string part = std::exchange(call->response.body, {});
  if (part.empty()) return;
  if (!std::exchange(call->flows, true)) loop_->cancel(std::exchange(call->timer, 0));
  if (const auto passed = capture([&] { call->part(part); }); !passed) finish(call, passed.error());
}

void HttpClient::transferred(const std::shared_ptr<Call>& call, int result) {
  const auto self = shared_from_this();  // keeps this object while `part` runs
  if (call->is_flow()) pass_on(call);
  if (!calls_.contains(call->id)) return;
  if (result == CURLE_OK) {
    call->response.status = call->status();
    return finish(call, std::move(call->response));
  }
  if (call->too_large)
    return finish(call, Error(ErrorKind::resource_exhausted,
                              "a response of more than " + std::to_string(options_.max_body) + " bytes"));
  failed(call, call->reason(result));
}

void HttpClient::timed_out(const std::shared_ptr<Call>& call) {
  if (std::erase(line_, call) != 0)
    return finish(call,
                  Error(ErrorKind::unavailable, "not reached: all connections were busy", call->execution()));
  failed(call, call->sent ? "no answer" : "no connection");
}

void HttpClient::failed(const std::shared_ptr<Call>& call, const std::string& reason) {
  call->executed |= call->sent;
  call->tried[call->server] = reason;
  if (call->server == current_) {
    next_server();
    multi_ = nullptr;  // its idle connections to the failed server are useless, too
  }
  release(*call);
  const auto now = loop_->now();
  const bool again = !call->flows && !call->request.server && (!call->sent || call->request.repeatable);
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
    finish(call, Error(ErrorKind::unavailable, "not reached: " + all, call->execution()));
  }
  next_in_line();
}

void HttpClient::finish(const std::shared_ptr<Call>& call, Result<HttpResponse>&& result) {
  calls_.erase(call->id);
  release(*call);
  Done done = std::move(call->done);
  const auto self = shared_from_this();  // keeps this object while `done` runs
  done(std::move(result));
  next_in_line();
}

void HttpClient::release(Call& call) {
  if (const auto multi = std::exchange(call.multi, nullptr)) multi->stop(call.transfer.get());
  call.transfer = nullptr;
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
  multi_ = nullptr;
  line_.clear();
  for (const auto& [id, call] : std::exchange(calls_, {}))
    finish(call, Error(ErrorKind::shut_down, "the client has closed"));
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
