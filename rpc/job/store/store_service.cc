#include <weft/rpc/job/store/store_service.h>

#include <weft/rpc/call/invoke.h>

namespace weft::rpc {
namespace detail {

Buffer to_bytes(const std::string& value) { return Buffer::copy(std::as_bytes(std::span(value))); }
std::string to_string(const Buffer& bytes) {
  return bytes.empty() ? std::string()
                       : std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}
std::optional<Buffer> to_bytes(const std::optional<std::string>& value) {
  return value ? std::optional(to_bytes(*value)) : std::nullopt;
}
std::optional<std::string> to_string(const std::optional<Buffer>& bytes) {
  return bytes ? std::optional(to_string(*bytes)) : std::nullopt;
}

}  // namespace detail

namespace {

using detail::to_bytes;
using detail::to_string;

StoreViewMessage message_of(StoreView view) {
  StoreViewMessage message{view.version, {}};
  for (const auto& [key, value] : view.entries) message.entries.emplace(key, to_bytes(value));
  return message;
}

StoreChangesMessage message_of(StoreChanges changes) {
  StoreChangesMessage message{changes.version, changes.whole, {}};
  for (const auto& [key, value] : changes.entries) message.entries.emplace(key, to_bytes(value));
  return message;
}

// The reply of a wait; cancels the wait when the call is cancelled.
template <class Sent, class T, class Convert>
Future<Sent> answer_of(CallContext& call, Future<T> waited, Convert convert) {
  auto promise = std::make_shared<Promise<Sent>>();
  auto answer = promise->future();
  auto chained =
      std::make_shared<Future<bool>>(waited.then([promise, convert = std::move(convert)](Result<T>&& result) {
        promise->complete(capture([&] { return convert(std::move(result)); }));
        return true;
      }));
  call.on_cancel([chained] { chained->cancel(); });
  return answer;
}

}  // namespace

Future<void> StoreService::set(std::string key, Buffer value, std::uint64_t lease) {
  return store_->set(std::move(key), to_string(value), lease);
}

Future<Buffer> StoreService::get(CallContext& call, std::string key) {
  return answer_of<Buffer>(call, store_->get(std::move(key)),
                           [](Result<std::string>&& value) { return to_bytes(std::move(value).get()); });
}

Future<std::optional<Buffer>> StoreService::try_get(std::string key) {
  return store_->try_get(std::move(key)).then([](Result<std::optional<std::string>>&& value) {
    return to_bytes(std::move(value).get());
  });
}

Future<std::int64_t> StoreService::add(std::string key, std::int64_t delta) {
  return store_->add(std::move(key), delta);
}

Future<StoreExchangeMessage> StoreService::compare_set(std::string key, std::optional<Buffer> expected,
                                                       Buffer desired, std::uint64_t lease) {
  return store_->compare_set(std::move(key), to_string(expected), to_string(desired), lease)
      .then([](Result<StoreExchange>&& result) {
        StoreExchange exchange = std::move(result).get();
        return StoreExchangeMessage{exchange.stored, to_bytes(exchange.actual)};
      });
}

Future<void> StoreService::wait(CallContext& call, std::vector<std::string> keys) {
  return answer_of<void>(call, store_->wait(std::move(keys)),
                         [](Result<void>&& result) { std::move(result).get(); });
}

Future<bool> StoreService::remove(std::string key) { return store_->remove(std::move(key)); }

Future<StoreViewMessage> StoreService::list(std::string prefix) {
  return store_->list(std::move(prefix)).then([](Result<StoreView>&& view) {
    return message_of(std::move(view).get());
  });
}

Future<StoreChangesMessage> StoreService::watch(CallContext& call, std::string prefix, std::uint64_t after) {
  return answer_of<StoreChangesMessage>(
      call, store_->watch(std::move(prefix), after),
      [](Result<StoreChanges>&& changes) { return message_of(std::move(changes).get()); });
}

Future<StoreLeaseMessage> StoreService::grant(std::int64_t ttl_ns) {
  return store_->grant(std::chrono::nanoseconds{ttl_ns}).then([](Result<StoreLease>&& result) {
    const StoreLease lease = std::move(result).get();
    return StoreLeaseMessage{lease.id, lease.ttl.count()};
  });
}

Future<void> StoreService::renew(std::uint64_t lease) { return store_->renew(lease); }

Future<void> StoreService::revoke(std::uint64_t lease) { return store_->revoke(lease); }

void serve_store(AgentCore& core, std::shared_ptr<Store> store) {
  detail::serve_object(core.methods(), std::make_shared<StoreService>(std::move(store)));
}

}  // namespace weft::rpc
