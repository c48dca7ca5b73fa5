#include <weft/rpc/job/store/remote_store.h>

#include <weft/rpc/job/store/store_service.h>

namespace weft::rpc {
namespace {

using detail::to_bytes;
using detail::to_string;

StoreView view_of(StoreViewMessage message) {
  StoreView view{message.version, {}};
  for (const auto& [key, value] : message.entries) view.entries.emplace(key, to_string(value));
  return view;
}

StoreChanges changes_of(StoreChangesMessage message) {
  StoreChanges changes{message.version, message.whole, {}};
  for (const auto& [key, value] : message.entries) changes.entries.emplace(key, to_string(value));
  return changes;
}

}  // namespace

Future<void> RemoteStore::set(std::string key, std::string value, LeaseId lease) {
  return peer_.call<&StoreService::set>(std::move(key), to_bytes(value), lease);
}

Future<std::string> RemoteStore::get(std::string key, CallOptions options) {
  return peer_.with(options).call<&StoreService::get>(std::move(key)).then([](Result<Buffer>&& value) {
    return to_string(std::move(value).get());
  });
}

Future<std::optional<std::string>> RemoteStore::try_get(std::string key) {
  return peer_.call<&StoreService::try_get>(std::move(key)).then([](Result<std::optional<Buffer>>&& value) {
    return to_string(std::move(value).get());
  });
}

Future<std::int64_t> RemoteStore::add(std::string key, std::int64_t delta) {
  return peer_.call<&StoreService::add>(std::move(key), delta);
}

Future<StoreExchange> RemoteStore::compare_set(std::string key, std::optional<std::string> expected,
                                               std::string desired, LeaseId lease) {
  return peer_.call<&StoreService::compare_set>(std::move(key), to_bytes(expected), to_bytes(desired), lease)
      .then([](Result<StoreExchangeMessage>&& result) {
        StoreExchangeMessage message = std::move(result).get();
        return StoreExchange{message.stored, to_string(message.actual)};
      });
}

Future<void> RemoteStore::wait(std::vector<std::string> keys, CallOptions options) {
  return peer_.with(options).call<&StoreService::wait>(std::move(keys));
}

Future<bool> RemoteStore::remove(std::string key) {
  return peer_.call<&StoreService::remove>(std::move(key));
}

Future<StoreView> RemoteStore::list(std::string prefix) {
  return peer_.call<&StoreService::list>(std::move(prefix)).then([](Result<StoreViewMessage>&& view) {
    return view_of(std::move(view).get());
  });
}

Future<StoreChanges> RemoteStore::watch(std::string prefix, std::uint64_t after, CallOptions options) {
  return peer_.with(options)
      .call<&StoreService::watch>(std::move(prefix), after)
      .then([](Result<StoreChangesMessage>&& changes) { return changes_of(std::move(changes).get()); });
}

Future<StoreLease> RemoteStore::grant(std::chrono::nanoseconds ttl) {
  return peer_.call<&StoreService::grant>(ttl.count()).then([](Result<StoreLeaseMessage>&& result) {
    const StoreLeaseMessage lease = std::move(result).get();
    return StoreLease{lease.id, std::chrono::nanoseconds{lease.ttl_ns}};
  });
}

Future<void> RemoteStore::renew(LeaseId lease) { return peer_.call<&StoreService::renew>(lease); }

Future<void> RemoteStore::revoke(LeaseId lease) { return peer_.call<&StoreService::revoke>(lease); }

}  // namespace weft::rpc
