// Store: the small key-value service by which the agents of a job find each other.
//
// Keys are text (UTF-8), values any bytes; both are meant to be small. A change is seen by every operation
// that begins after its future has completed; a watch may be behind, and catches up. get, wait and watch wait
// as long as it takes: they end early by the future's cancel(), by the deadline of their options
// (deadline_exceeded), or with the store (shut_down, or unavailable where it cannot be reached). Backends:
// memory_store.h (served to peers by store_service.h), remote_store.h (a peer's), file_store.h (a shared
// folder), etcd_store.h (etcd); tests/support/store_suite.h is the suite that each passes. Thread-safe;
// futures complete on threads of the backend or inline, so what is chained to them must not block.
#pragma once

#include <weft/rpc/agent/call_options.h>
#include <weft/rpc/core/future.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace weft::rpc {

// The keys with one prefix, at one moment.
struct StoreView {
  std::uint64_t version = 0;  // of the whole store: grows with every change; never 0
  std::map<std::string, std::string> entries;
};

// What has changed under a prefix since a version, up to another one: of each key the latest value, none
// where it was removed. What a key held in between is not told.
struct WEFT_EXPORT StoreChanges {
  std::uint64_t version = 0;
  bool whole = false;  // these are all the keys there are: the store no longer knows what changed
  std::map<std::string, std::optional<std::string>> entries;

  void apply_to(std::map<std::string, std::string>& copy) const;  // of the prefix as it was
};

// How a compare_set ended: `actual` is what the key holds afterwards.
struct StoreExchange {
  bool stored = false;
  std::optional<std::string> actual;
};

// A lease: the keys that were set under it are removed when it ends, because nobody has renewed it for `ttl`
// or because it is revoked. Time is the store's: time in which the store itself stood still does not count.
using LeaseId = std::uint64_t;
inline constexpr LeaseId no_lease = 0;
struct StoreLease {
  LeaseId id = no_lease;
  std::chrono::nanoseconds ttl{0};  // as granted: at least what was asked for
};

class WEFT_EXPORT Store {
 public:
  virtual ~Store() = default;

  // A key belongs to the lease of the last change, or to none. lease_lost: the lease has ended.
  virtual Future<void> set(std::string key, std::string value, LeaseId lease = no_lease) = 0;
  virtual Future<std::string> get(std::string key,
                                  CallOptions options = {}) = 0;  // waits until the key exists
  virtual Future<std::optional<std::string>> try_get(std::string key) = 0;
  // Adds to the decimal number that the key holds, 0 where it does not exist, and gives the new one; the key
  // then belongs to no lease. invalid_argument where it holds something else, or where the sum does not fit.
  virtual Future<std::int64_t> add(std::string key, std::int64_t delta) = 0;
  // Stores `desired` if the key holds `expected` (nullopt: if it does not exist).
  virtual Future<StoreExchange> compare_set(std::string key, std::optional<std::string> expected,
                                            std::string desired, LeaseId lease = no_lease) = 0;
  // Waits until all the keys exist at one time.
  virtual Future<void> wait(std::vector<std::string> keys, CallOptions options = {}) = 0;
  virtual Future<bool> remove(std::string key) = 0;  // whether it existed
  virtual Future<StoreView> list(std::string prefix) = 0;
  // What has changed under the prefix after that version, as soon as something has: asked again and again,
  // each time after the version that came last, it tells of every change in order. After 0: at once all there
  // is. Seldom also when nothing has changed.
  virtual Future<StoreChanges> watch(std::string prefix, std::uint64_t after, CallOptions options = {}) = 0;

  // At least this long, where the store's clock is coarse. invalid_argument
  // where it is not positive.
  virtual Future<StoreLease> grant(std::chrono::nanoseconds ttl) = 0;
  virtual Future<void> renew(LeaseId lease) = 0;   // lease_lost where it has ended
  virtual Future<void> revoke(LeaseId lease) = 0;  // ends it; no error where it has ended before
};

}  // namespace weft::rpc
