#include <weft/rpc/job/store/internal/etcd_client.h>

#include <weft/rpc/core/parse_number.h>
#include <weft/rpc/job/store/base64.h>

#include <nlohmann/json.hpp>

namespace weft::rpc::detail {
namespace {

using Json = nlohmann::json;

constexpr auto pause = std::chrono::milliseconds{100};  // before a retry, if the server is unavailable
constexpr std::size_t max_line = 64 * 1024 * 1024;      // of a watch: one revision's changes

// --- Reading: missing fields have their default; 64-bit numbers are text ---

[[noreturn]] void no_etcd(const std::string& what) {
  throw Error(ErrorKind::protocol_error, "not a reply of etcd: " + what);
}

const Json& field(const Json& object, const char* name) {
  static const Json none;
  if (!object.is_object()) return none;
  const auto found = object.find(name);
  return found == object.end() ? none : *found;
}

// The beginning of a value, for errors.
std::string excerpt(const Json& value) {
  return value.dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, 64);
}

std::uint64_t to_number(const Json& value) {
  if (value.is_null()) return 0;
  if (value.is_number_unsigned()) return value.get<std::uint64_t>();
  const auto number =
      value.is_string() ? parse_number<std::uint64_t>(value.get_ref<const std::string&>()) : std::nullopt;
  if (!number) no_etcd("expected a number, found " + excerpt(value));
  return *number;
}

std::string to_bytes(const Json& value) {
  if (value.is_null()) return {};
  if (!value.is_string()) no_etcd("expected base64, found " + excerpt(value));
  auto bytes = from_base64(value.get_ref<const std::string&>());
  if (!bytes) no_etcd("expected base64, found " + excerpt(value));
  return {reinterpret_cast<const char*>(bytes->data()), bytes->size()};
}

std::string encoded(std::string_view bytes) { return to_base64(std::as_bytes(std::span(bytes))); }

bool to_bool(const Json& value) { return value.is_boolean() && value.get<bool>(); }

EtcdEntry to_entry(const Json& kv) {
  return {to_bytes(field(kv, "key")), to_bytes(field(kv, "value")), to_number(field(kv, "mod_revision"))};
}

std::uint64_t version_of(const Json& answer) {
  const std::uint64_t version = to_number(field(field(answer, "header"), "revision"));
  if (version == 0) no_etcd("its header has no revision");
  return version;
}

void add_entries(const Json& range, std::vector<EtcdEntry>& entries) {
  for (const Json& kv : field(range, "kvs")) entries.push_back(to_entry(kv));
}

EtcdRange to_range(const Json& answer) {
  EtcdRange range{version_of(answer), {}};
  add_entries(answer, range.entries);
  return range;
}

Json parse(std::string_view text) {
  Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) no_etcd("'" + std::string(text.substr(0, 80)) + "'");
  return json;
}

std::string text_of(const Json& value) {
  return value.is_string() ? value.get<std::string>() : std::string();
}

// Converts a failure of the gateway by its gRPC code (https://grpc.io/docs/guides/status-codes/).
Error to_error(const Json& failure) {
  std::string message = text_of(field(failure, "message"));
  if (message.empty()) message = text_of(field(failure, "error"));
  if (message.empty()) no_etcd("an error without a message");
  const std::uint64_t code =
      to_number(field(failure, field(failure, "grpc_code").is_null() ? "code" : "grpc_code"));
  const ErrorKind kind = [&] {
    switch (code) {
      case 3:
        return ErrorKind::invalid_argument;
      case 5:  // not_found: only a lease can be missing
        return ErrorKind::lease_lost;
      case 7:
      case 16:
        return ErrorKind::permission_denied;
      case 8:
        return ErrorKind::resource_exhausted;
      case 12:
        return ErrorKind::unsupported;
      default:  // no leader, an election, a server that shuts down: the request may have been executed
        return ErrorKind::unavailable;
    }
  }();
  return Error(kind, message,
               kind == ErrorKind::unavailable ? Execution::maybe_executed : Execution::not_sent);
}

// --- Writing ---

// The first key after all keys with the prefix; "\0" (no end) if no such key exists.
std::string end_of(std::string prefix) {
  while (!prefix.empty() && prefix.back() == '\xff') prefix.pop_back();
  if (prefix.empty()) return std::string(1, '\0');
  ++prefix.back();
  return prefix;
}

Json range_of(const std::string& key) { return {{"key", encoded(key)}}; }

Json prefix_range(const std::string& prefix) {
  return {{"key", encoded(prefix)}, {"range_end", encoded(end_of(prefix))}};
}

Json put_of(const std::string& key, const std::string& value, LeaseId lease) {
  Json put{{"key", encoded(key)}, {"value", encoded(value)}};
  if (lease != no_lease) put["lease"] = std::to_string(lease);
  return put;
}

std::string exchange_of(Json compare, const std::string& key, const std::string& desired, LeaseId lease) {
  compare["key"] = encoded(key);
  compare["result"] = "EQUAL";
  return Json{{"compare", {std::move(compare)}},
              {"success", {{{"request_put", put_of(key, desired, lease)}}}},
              {"failure", {{{"request_range", range_of(key)}}}}}
      .dump();
}

EtcdExchange to_exchange(const Json& answer) {
  EtcdExchange exchange{to_bool(field(answer, "succeeded")), {}};
  if (exchange.stored) return exchange;
  std::vector<EtcdEntry> entries;
  for (const Json& response : field(answer, "responses"))
    add_entries(field(response, "response_range"), entries);
  if (!entries.empty()) exchange.actual = std::move(entries.front());
  return exchange;
}

}  // namespace

EtcdClient::EtcdClient(std::shared_ptr<Loop> loop, std::vector<HttpAddress> servers,
                       std::chrono::nanoseconds attempt)
    : loop_(std::move(loop)),
      http_(std::make_shared<HttpClient>(loop_, servers, HttpClientOptions{})),
      // A server that does not answer must leave time for the others.
      attempt_(servers.size() > 1 ? attempt : std::chrono::nanoseconds::zero()) {
  for (const auto& server : servers) names_ += (names_.empty() ? "" : ",") + server.text();
}

HttpRequest EtcdClient::request(std::string target, std::string body, Time until, bool repeatable) const {
  return {std::move(target), std::move(body), until, attempt_, repeatable, {}};
}

// One call: the request, the function that reads its reply, and the promise.
template <class T, class Read>
struct EtcdClient::Call : std::enable_shared_from_this<Call<T, Read>> {
  Call(const EtcdClient& client, HttpRequest ask, Read answer)
      : loop(client.loop_),
        http(client.http_),
        names(client.names_),
        request(std::move(ask)),
        read(std::move(answer)),
        promise(loop) {}

  const std::shared_ptr<Loop> loop;
  const std::shared_ptr<HttpClient> http;
  const std::string names;
  const HttpRequest request;
  const Read read;
  Promise<T> promise;

  void start() {
    http->post(request, [self = this->shared_from_this()](Result<HttpResponse>&& response) {
      self->answered(std::move(response));
    });
  }
  void answered(Result<HttpResponse>&& response) {
    const bool by_server = response.ok();
    const Result<Json> answer = capture([&] {
      const HttpResponse whole = std::move(response).get();
      Json json = parse(whole.body);
      if (whole.status != 200) throw to_error(json);
      // If the method is a stream in gRPC, its reply is in "result", and its failure in "error".
      if (field(json, "error").is_object()) throw to_error(field(json, "error"));
      return field(json, "result").is_object() ? field(json, "result") : json;
    });
    if (by_server && !answer.ok() && asks_again(answer.error())) return;
    promise.complete(capture([&]() -> T {
      try {
        return read(Result<Json>(answer).get());
      } catch (const Error& error) {
        throw Error(error.kind(), "etcd at " + names + ": " + error.what(), error.execution());
      }
    }));
  }
  // If the server is unavailable now, this server or another one may be available soon.
  bool asks_again(const std::exception_ptr& error) {
    if (!request.repeatable || loop->now() + pause >= request.until ||
        error_kind(error) != ErrorKind::unavailable)
      return false;
    http->next_server();
    loop->schedule(loop->now() + pause, [self = this->shared_from_this()] { self->start(); });
    return true;
  }
};

template <class T, class Read>
Future<T> EtcdClient::call(HttpRequest request, Read read) {
  auto call = std::make_shared<Call<T, Read>>(*this, std::move(request), std::move(read));
  auto future = call->promise.future();
  call->start();
  return future;
}

Future<EtcdRange> EtcdClient::get(const std::string& key, Time until) {
  return call<EtcdRange>(request("/v3/kv/range", range_of(key).dump(), until, true), to_range);
}

Future<EtcdRange> EtcdClient::get_all(const std::string& prefix, Time until) {
  return call<EtcdRange>(request("/v3/kv/range", prefix_range(prefix).dump(), until, true), to_range);
}

Future<EtcdRange> EtcdClient::get_some(const std::vector<std::string>& keys, std::optional<std::uint64_t> at,
                                       Time until) {
  Json requests = Json::array();
  for (const std::string& key : keys) {
    Json range = range_of(key);
    range["keys_only"] = true;
    if (at) range["revision"] = std::to_string(*at);
    requests.push_back({{"request_range", std::move(range)}});
  }
  return call<EtcdRange>(request("/v3/kv/txn", Json{{"success", std::move(requests)}}.dump(), until, true),
                         [](const Json& answer) {
                           EtcdRange entries{version_of(answer), {}};
                           for (const Json& response : field(answer, "responses"))
                             add_entries(field(response, "response_range"), entries.entries);
                           return entries;
                         });
}

Future<void> EtcdClient::put(const std::string& key, const std::string& value, LeaseId lease, Time until) {
  // Repeatable: Store::set() is idempotent (store_service.h).
  return call<void>(request("/v3/kv/put", put_of(key, value, lease).dump(), until, true),
                    [](const Json& answer) { (void)version_of(answer); });
}

Future<EtcdExchange> EtcdClient::exchange(const std::string& key, const std::optional<std::string>& expected,
                                          const std::string& desired, LeaseId lease, Time until) {
  Json compare = expected ? Json{{"target", "VALUE"}, {"value", encoded(*expected)}}
                          : Json{{"target", "CREATE"}, {"create_revision", "0"}};
  return call<EtcdExchange>(
      request("/v3/kv/txn", exchange_of(std::move(compare), key, desired, lease), until, false), to_exchange);
}

Future<EtcdExchange> EtcdClient::exchange_version(const std::string& key, std::uint64_t version,
                                                  const std::string& desired, LeaseId lease, Time until) {
  Json compare{{"target", "MOD"}, {"mod_revision", std::to_string(version)}};
  return call<EtcdExchange>(
      request("/v3/kv/txn", exchange_of(std::move(compare), key, desired, lease), until, false), to_exchange);
}

Future<bool> EtcdClient::remove(const std::string& key, Time until) {
  return call<bool>(request("/v3/kv/deleterange", range_of(key).dump(), until, false),
                    [](const Json& answer) { return to_number(field(answer, "deleted")) != 0; });
}

Future<void> EtcdClient::remove_all(const std::string& prefix, Time until) {
  return call<void>(request("/v3/kv/deleterange", prefix_range(prefix).dump(), until, true),
                    [](const Json& answer) { (void)version_of(answer); });
}

Future<StoreLease> EtcdClient::grant(std::chrono::nanoseconds ttl, Time until) {
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(ttl);
  // Repeatable: a lease whose reply was lost expires.
  return call<StoreLease>(
      request("/v3/lease/grant", Json{{"TTL", std::to_string(seconds.count())}}.dump(), until, true),
      [](const Json& answer) {
        return StoreLease{to_number(field(answer, "ID")),
                          std::chrono::seconds{to_number(field(answer, "TTL"))}};
      });
}

Future<void> EtcdClient::renew(LeaseId lease, Time until) {
  return call<void>(request("/v3/lease/keepalive", Json{{"ID", std::to_string(lease)}}.dump(), until, true),
                    [lease](const Json& answer) {
                      if (to_number(field(answer, "TTL")) == 0)
                        throw Error(ErrorKind::lease_lost,
                                    "the lease " + std::to_string(lease) + " has ended");
                    });
}

Future<void> EtcdClient::revoke(LeaseId lease, Time until) {
  return call<void>(request("/v3/lease/revoke", Json{{"ID", std::to_string(lease)}}.dump(), until, true),
                    [](const Json&) {})
      .then([](Result<void>&& revoked) -> Result<void> {
        const bool before = !revoked.ok() && error_kind(revoked.error()) == ErrorKind::lease_lost;
        return before ? Result<void>{} : std::move(revoked);
      });
}

Future<void> EtcdClient::probe(WatchId watch, const std::string& key, Time until) {
  Json range = range_of(key);
  range["count_only"] = true;
  HttpRequest ask = request("/v3/kv/range", range.dump(), until, true);
  ask.server = http_->server_of(watch);
  return call<void>(std::move(ask), [](const Json& answer) { (void)version_of(answer); });
}

EtcdClient::WatchId EtcdClient::watch(const std::string& prefix, std::uint64_t from, Time until,
                                      Events events, Ended ended) {
  Json create = prefix_range(prefix);
  create["progress_notify"] = true;
  if (from != 0) create["start_revision"] = std::to_string(from);

  const auto read = [events = std::move(events)](std::string_view line) {
    const Json json = parse(line);
    if (field(json, "error").is_object()) throw to_error(field(json, "error"));
    const Json& result = field(json, "result");
    EtcdEvents batch{version_of(result),
                     to_bool(field(result, "created")),
                     to_number(field(result, "compact_revision")) != 0,
                     {}};
    if (to_bool(field(result, "canceled")) && !batch.missed)
      throw Error(ErrorKind::unavailable,
                  "the watch was cancelled: " + text_of(field(result, "cancel_reason")));
    // A line may contain several revisions, each complete and in order.
    for (const Json& event : field(result, "events")) {
      EtcdEntry change = to_entry(field(event, "kv"));
      if (text_of(field(event, "type")) == "DELETE") change.value.reset();
      if (!batch.changes.empty() && batch.changes.back().version != change.version) {
        EtcdEvents rest{batch.version, false, false, {}};
        batch.version = batch.changes.back().version;
        events(std::exchange(batch, std::move(rest)));
      }
      batch.changes.push_back(std::move(change));
    }
    if (!batch.changes.empty()) batch.version = batch.changes.back().version;
    events(std::move(batch));
  };
  return http_->stream(
      request("/v3/watch", Json{{"create_request", std::move(create)}}.dump(), until, true),
      [read, line = std::string()](std::string_view part) mutable {
        for (std::size_t end = 0; (end = part.find('\n')) != std::string_view::npos;
             part.remove_prefix(end + 1)) {
          line += part.substr(0, end);
          if (const std::string whole = std::exchange(line, {}); !whole.empty()) read(whole);
        }
        if (part.size() > max_line - line.size())
          throw Error(ErrorKind::resource_exhausted, "a change is longer than " + std::to_string(max_line) +
                                                         " bytes, the limit of this client");
        line += part;
      },
      [names = names_, ended = std::move(ended)](Result<HttpResponse>&& result) mutable {
        const Result<void> reason = capture([&] {
          const HttpResponse response = std::move(result).get();
          if (response.status != 200) throw to_error(parse(response.body));
          throw Error(ErrorKind::unavailable, "the server has ended the watch");
        });
        const Error error = as_error(reason.error()).value();
        ended(Error(error.kind(), "etcd at " + names + ": " + error.what(), error.execution()));
      });
}

}  // namespace weft::rpc::detail
