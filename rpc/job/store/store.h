// Store: the small key-value service through which the agents of a job find each other.
//
// Keys are text (UTF-8), values any bytes; both should be small. Once the future of a change has completed,
// later operations see the change; a watch may lag behind. The futures of get, wait and watch complete when
// the keys exist or change. They fail early if the program cancels the future, if the deadline of the options
// expires (deadline_exceeded), or if the store fails (shut_down; unavailable if it cannot be reached).
// Backends: memory_store.h (served to peers by store_service.h), remote_store.h (a peer's), file_store.h (a
// shared directory), etcd_store.h (etcd). Each passes tests/support/store_suite.h. Thread-safe; futures
// complete on threads of the backend or inline, so continuations must not block.
#pragma once

#include <weft/rpc/call/call_options.h>
#include <weft/rpc/core/future.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace weft::rpc {

// The keys with one prefix, at one version.
struct StoreView {
  std::uint64_t version = 0;  // of the whole store: increases with every change; never 0
  std::map<std::string, std::string> entries;
};

// The changes under a prefix between two versions: the latest value of each changed key, or nullopt if it was
// removed. Values in between are omitted.
struct WEFT_EXPORT StoreChanges {
  std::uint64_t version = 0;
  bool whole = false;  // `entries` has all existing keys, because the store no longer knows what has changed
  std::map<std::string, std::optional<std::string>> entries;

  // Applies these changes to a copy of the entries at the earlier version.
  void apply_to(std::map<std::string, std::string>& copy) const;
};

// The result of compare_set: `actual` is the value of the key afterwards.
struct StoreExchange {
  bool stored = false;
  std::optional<std::string> actual;
};

// A lease. When it ends, the keys that were set with it are removed. A lease ends when it is revoked, or when
// it was not renewed for `ttl`. The store's clock measures this time, and does not count time in which the
// store itself was stopped.
using LeaseId = std::uint64_t;
inline constexpr LeaseId no_lease = 0;
// The result of grant().
struct StoreLease {
  LeaseId id = no_lease;
  std::chrono::nanoseconds ttl{0};  // as granted: at least the requested time
};

class WEFT_EXPORT Store {
 public:
  virtual ~Store() = default;

  // After set(), the key belongs to `lease`, or to no lease if `lease` is no_lease. lease_lost: the lease has
  // ended.
  virtual Future<void> set(std::string key, std::string value, LeaseId lease = no_lease) = 0;
  // Waits until the key exists.
  virtual Future<std::string> get(std::string key, CallOptions options = {}) = 0;
  // Does not wait. nullopt: the key does not exist.
  virtual Future<std::optional<std::string>> try_get(std::string key) = 0;
  // Adds to the decimal number that the key holds (0 if the key does not exist), and returns the sum. The key
  // then belongs to no lease. invalid_argument if the key holds no number, or if the sum overflows.
  virtual Future<std::int64_t> add(std::string key, std::int64_t delta) = 0;
  // Stores `desired` if the key holds `expected` (nullopt: if the key does not exist). The key then belongs
  // to `lease`, as after set().
  virtual Future<StoreExchange> compare_set(std::string key, std::optional<std::string> expected,
                                            std::string desired, LeaseId lease = no_lease) = 0;
  // Waits until all keys exist at the same version.
  virtual Future<void> wait(std::vector<std::string> keys, CallOptions options = {}) = 0;

  virtual Future<bool> remove(std::string key) = 0;  // returns whether the key existed
  // All keys that begin with the prefix.
  virtual Future<StoreView> list(std::string prefix) = 0;
  // Waits for changes under the prefix after version `after`, and returns them. A caller that passes the last
  // returned version each time misses no changed key. Of several changes of one key, the caller may receive
  // only the last. If `after` is 0, watch() returns all keys at once. In rare cases the future completes
  // without changes.
  virtual Future<StoreChanges> watch(std::string prefix, std::uint64_t after, CallOptions options = {}) = 0;

  // The granted time may be longer than `ttl`, because the store's clock may be coarse. invalid_argument if
  // ttl is not positive.
  virtual Future<StoreLease> grant(std::chrono::nanoseconds ttl) = 0;

  virtual Future<void> renew(LeaseId lease) = 0;   // lease_lost if the lease has ended
  virtual Future<void> revoke(LeaseId lease) = 0;  // no error if the lease has ended before
};

}  // namespace weft::rpc
