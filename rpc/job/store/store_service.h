// StoreService: a store as the service "weft.store", so that an agent serves it to peers (remote_store.h).
//
// Its methods run on the loop of the connection to the caller, in the order of arrival. A wait occupies no
// thread. A wait ends when its call is cancelled or times out, or when the caller is lost. Thread-safe.
#pragma once

#include <weft/rpc/call/method.h>
#include <weft/rpc/endpoint/agent_core.h>
#include <weft/rpc/job/store/store.h>

namespace weft::rpc {

// StoreView on the wire. Values are sent as bytes, because text must be UTF-8; the same applies to the types
// below.
struct StoreViewMessage {
  std::uint64_t version = 0;
  std::map<std::string, Buffer> entries;
};
WEFT_CODEC(StoreViewMessage, version, entries)

// StoreChanges on the wire: entries without a value are keys that were removed.
struct StoreChangesMessage {
  std::uint64_t version = 0;
  bool whole = false;
  std::map<std::string, std::optional<Buffer>> entries;
};
WEFT_CODEC(StoreChangesMessage, version, whole, entries)

// StoreLease on the wire; ttl_ns: the granted time in nanoseconds.
struct StoreLeaseMessage {
  std::uint64_t id = 0;
  std::int64_t ttl_ns = 0;
};
WEFT_CODEC(StoreLeaseMessage, id, ttl_ns)

// StoreExchange on the wire.
struct StoreExchangeMessage {
  bool stored = false;
  std::optional<Buffer> actual;
};
WEFT_CODEC(StoreExchangeMessage, stored, actual)

class WEFT_EXPORT StoreService {
 public:
  explicit StoreService(std::shared_ptr<Store> store) : store_(std::move(store)) {}

  // Remote methods: the operations of Store with the same names, with the same errors. lease: 0 is no_lease.
  // get, wait and watch have no deadline of their own: the deadline of the call cancels them.
  Future<void> set(std::string key, Buffer value, std::uint64_t lease);
  Future<Buffer> get(CallContext& call, std::string key);
  Future<std::optional<Buffer>> try_get(std::string key);
  Future<std::int64_t> add(std::string key, std::int64_t delta);
  Future<StoreExchangeMessage> compare_set(std::string key, std::optional<Buffer> expected, Buffer desired,
                                           std::uint64_t lease);
  Future<void> wait(CallContext& call, std::vector<std::string> keys);
  Future<bool> remove(std::string key);
  Future<StoreViewMessage> list(std::string prefix);
  Future<StoreChangesMessage> watch(CallContext& call, std::string prefix, std::uint64_t after);
  Future<StoreLeaseMessage> grant(std::int64_t ttl_ns);
  Future<void> renew(std::uint64_t lease);
  Future<void> revoke(std::uint64_t lease);

  using Service =
      rpc::Service<"weft.store", Method<"set", &StoreService::set, idempotent, non_blocking, background>,
                   Method<"get", &StoreService::get, idempotent, non_blocking, background>,
                   Method<"try_get", &StoreService::try_get, idempotent, non_blocking, background>,
                   Method<"add", &StoreService::add, non_blocking, background>,
                   Method<"compare_set", &StoreService::compare_set, non_blocking, background>,
                   Method<"wait", &StoreService::wait, idempotent, non_blocking, background>,
                   Method<"remove", &StoreService::remove, non_blocking, background>,
                   Method<"list", &StoreService::list, idempotent, non_blocking, background>,
                   Method<"watch", &StoreService::watch, idempotent, non_blocking, background>,
                   Method<"grant", &StoreService::grant, non_blocking, background>,
                   Method<"renew", &StoreService::renew, idempotent, non_blocking, background>,
                   Method<"revoke", &StoreService::revoke, idempotent, non_blocking, background>>;

 private:
  std::shared_ptr<Store> store_;
};

// Serves the store to peers. Throws already_exists if the agent already serves a store. The agent keeps the
// store until the agent ends.
WEFT_EXPORT void serve_store(AgentCore& core, std::shared_ptr<Store> store);

namespace detail {

// Conversions between a store's strings and the wire's bytes.
WEFT_EXPORT Buffer to_bytes(const std::string& value);
WEFT_EXPORT std::string to_string(const Buffer& bytes);
WEFT_EXPORT std::optional<Buffer> to_bytes(const std::optional<std::string>& value);
WEFT_EXPORT std::optional<std::string> to_string(const std::optional<Buffer>& bytes);

}  // namespace detail

}  // namespace weft::rpc
