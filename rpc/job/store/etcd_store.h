// EtcdStore: a store in etcd (https://etcd.io), through the JSON gateway of its v3 API, without
// authentication.
//
// Keys have a prefix, one for each job. All waits share one stream of changes, which is reopened after a
// failure without missing changes. Requests use one server until it fails, then the next. If a request does
// not succeed within `timeout`, it fails with unavailable. The error names the servers that were tried. Its
// execution() is not_sent if certainly nothing was changed, otherwise maybe_executed. A wait fails in the
// same way if no server is reached for `timeout`. The times of leases are whole seconds, at least two,
// because etcd requires that. The store need not be owned by a shared_ptr. Thread-safe; futures complete on
// the loop. Call close() before the loop ends.
#pragma once

#include <weft/rpc/core/loop.h>
#include <weft/rpc/job/store/store.h>

#include <memory>
#include <string_view>

namespace weft::rpc {

// The cluster and the prefix of the keys. All agents of a job use the same ones.
struct EtcdStoreOptions {
  std::vector<std::string> servers;                             // of one cluster: "host:port" or "[v6]:port"
  std::string prefix = "weft/";                                 // of all keys; each job needs its own
  std::chrono::nanoseconds timeout = std::chrono::seconds{10};  // of one request, over all servers
};

class WEFT_EXPORT EtcdStore final : public Store {
 public:
  // loop: an AsioLoop. Throws invalid_argument if there are no servers, or if a server has no port.
  EtcdStore(std::shared_ptr<Loop> loop, const EtcdStoreOptions& options);
  ~EtcdStore() override;
  // Parses "etcd://host:port[,host:port…][/prefix]"; the default port is 2379. Throws invalid_argument.
  static EtcdStoreOptions options_of(std::string_view url);

  Future<void> set(std::string key, std::string value, LeaseId lease = no_lease) override;
  Future<std::string> get(std::string key, CallOptions options = {}) override;
  Future<std::optional<std::string>> try_get(std::string key) override;
  Future<std::int64_t> add(std::string key, std::int64_t delta) override;
  Future<StoreExchange> compare_set(std::string key, std::optional<std::string> expected, std::string desired,
                                    LeaseId lease = no_lease) override;
  Future<void> wait(std::vector<std::string> keys, CallOptions options = {}) override;
  Future<bool> remove(std::string key) override;
  Future<StoreView> list(std::string prefix) override;
  Future<StoreChanges> watch(std::string prefix, std::uint64_t after, CallOptions options = {}) override;
  Future<StoreLease> grant(std::chrono::nanoseconds ttl) override;
  Future<void> renew(LeaseId lease) override;
  Future<void> revoke(LeaseId lease) override;

  void close();            // current and later operations fail with shut_down
  Future<void> discard();  // removes every key under the prefix

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace weft::rpc
