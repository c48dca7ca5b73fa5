// EtcdStore: a store in etcd (https://etcd.io), by the JSON gateway of its v3 API, without credentials.
//
// Keys live under a prefix, one for each job. Waits share one stream of changes, which is opened again after
// a loss without missing any. Requests go to one server until it fails, then to the next; what cannot be done
// within `timeout` fails with unavailable, which names the servers that were tried: Execution::not_sent if
// nothing was changed for certain, maybe_executed otherwise. Waits fail so where no server has been reached
// for so long. Leases are etcd's own: whole seconds, two at least. Owned through shared_ptr or not;
// thread-safe; futures complete on the loop. close() it before the loop ends.
#pragma once

#include <weft/rpc/core/loop.h>
#include <weft/rpc/store/store.h>

#include <memory>
#include <string_view>

namespace weft::rpc {

struct EtcdStoreOptions {
  std::vector<std::string> servers;  // "host:port", "[v6]:port"; of one cluster
  std::string prefix = "weft/";
  std::chrono::nanoseconds timeout = std::chrono::seconds{10};
};

class WEFT_EXPORT EtcdStore final : public Store {
 public:
  // The loop is an AsioLoop. invalid_argument: no servers, or one without a port.
  EtcdStore(std::shared_ptr<Loop> loop, const EtcdStoreOptions& options);
  ~EtcdStore() override;
  // Of "etcd://host:port[,host:port…][/prefix]"; without a port it is 2379. Throws invalid_argument.
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

  void close();            // everything under way and to come fails with shut_down
  Future<void> discard();  // removes every key under the prefix

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace weft::rpc
