// EtcdClient: the operations of etcd's v3 API that a store needs, through its JSON gateway
// (https://etcd.io/docs/v3.4/dev-guide/api_grpc_gateway/). Keys are etcd's keys; versions are its revisions.
//
// Members are called on the client's loop, and futures complete there. Errors: unavailable (with the tried
// servers, and whether the change may have been made), lease_lost, permission_denied, invalid_argument (a
// request that is too large), resource_exhausted (no space), protocol_error (the server is not etcd).
#pragma once

#include <weft/rpc/core/future.h>
#include <weft/rpc/job/store/internal/http_client.h>
#include <weft/rpc/job/store/store.h>

#include <functional>

namespace weft::rpc::detail {

struct EtcdEntry {
  std::string key;
  std::optional<std::string> value;  // nullopt: the key was removed
  std::uint64_t version = 0;         // the revision of the key's last change
};

struct EtcdRange {
  std::uint64_t version = 0;  // the store's revision
  std::vector<EtcdEntry> entries;
};

struct EtcdExchange {
  bool stored = false;
  std::optional<EtcdEntry> actual;  // the entry of the key, if `desired` was not stored
};

// The changes of one revision. missed: the watch cannot continue, because etcd no longer has earlier changes.
struct EtcdEvents {
  std::uint64_t version = 0;
  bool created = false;  // the watch has begun
  bool missed = false;
  std::vector<EtcdEntry> changes;
};

class EtcdClient {
 public:
  using Time = Clock::time_point;  // `until`: the deadline of the call
  using WatchId = HttpClient::CallId;

  EtcdClient(std::shared_ptr<Loop> loop, std::vector<HttpAddress> servers, std::chrono::nanoseconds attempt);

  Future<EtcdRange> get(const std::string& key, Time until);
  Future<EtcdRange> get_all(const std::string& prefix, Time until);
  // The entries of the given keys, without keys that do not exist, at one revision. keys: at most max_keys.
  // at: the revision; nullopt: the newest.
  static constexpr std::size_t max_keys = 100;
  Future<EtcdRange> get_some(const std::vector<std::string>& keys, std::optional<std::uint64_t> at,
                             Time until);
  Future<void> put(const std::string& key, const std::string& value, LeaseId lease, Time until);
  // exchange() stores `desired` if the key has the value `expected` (nullopt: if the key does not exist).
  // exchange_version() stores `desired` if the last change of the key was at `version` (0: if the key does
  // not exist).
  Future<EtcdExchange> exchange(const std::string& key, const std::optional<std::string>& expected,
                                const std::string& desired, LeaseId lease, Time until);
  Future<EtcdExchange> exchange_version(const std::string& key, std::uint64_t version,
                                        const std::string& desired, LeaseId lease, Time until);
  Future<bool> remove(const std::string& key, Time until);
  Future<void> remove_all(const std::string& prefix, Time until);
  Future<StoreLease> grant(std::chrono::nanoseconds ttl, Time until);
  Future<void> renew(LeaseId lease, Time until);
  Future<void> revoke(LeaseId lease, Time until);
  // Fails unless the server of a watch is alive and belongs to a cluster with a quorum.
  Future<void> probe(WatchId watch, const std::string& key, Time until);

  // Watches all changes under the prefix from a revision on (0: from now on), until it fails.
  using Events = std::function<void(EtcdEvents&&)>;
  using Ended = UniqueFunction<void(const Error&)>;
  WatchId watch(const std::string& prefix, std::uint64_t from, Time until, Events events, Ended ended);
  void stop(WatchId watch) { http_->stop(watch); }

  void close() { http_->close(); }

 private:
  HttpRequest request(std::string target, std::string body, Time until, bool repeatable) const;
  template <class T, class Read>
  struct Call;
  template <class T, class Read>
  Future<T> call(HttpRequest request, Read read);

  std::shared_ptr<Loop> loop_;
  std::string names_;  // the servers' names, for errors
  std::shared_ptr<HttpClient> http_;
  std::chrono::nanoseconds attempt_;
};

}  // namespace weft::rpc::detail
