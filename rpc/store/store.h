// Store: the small key-value service by which the agents of a job find each other.
//
// Keys are text, values any bytes; both are meant to be small. A change is seen by every operation that
// begins after its future has completed. get, wait and watch wait as long as it takes: they end early by the
// future's cancel(), by the deadline of their options (deadline_exceeded), or with the store (shut_down).
// Backends: memory_store.h (served to peers by store_service.h), remote_store.h (a peer's), file_store.h (a
// shared folder); tests/rpc/store_test.cc is the suite that each passes. Thread-safe; futures complete on
// threads of the backend or inline, so what is chained to them must not block.
#pragma once

#include <weft/rpc/agent/call_options.h>
#include <weft/rpc/core/future.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace weft::rpc {

// The keys with one prefix, at one moment.
struct StoreView {
  std::uint64_t version = 0;  // of the whole store: grows with every change, 0 before the first
  std::map<std::string, std::string> entries;
};

// How a compare_set ended: `actual` is what the key holds afterwards.
struct StoreExchange {
  bool stored = false;
  std::optional<std::string> actual;
};

class WEFT_EXPORT Store {
 public:
  virtual ~Store() = default;

  virtual Future<void> set(std::string key, std::string value) = 0;
  virtual Future<std::string> get(std::string key,
                                  CallOptions options = {}) = 0;  // waits until the key exists
  virtual Future<std::optional<std::string>> try_get(std::string key) = 0;
  // Adds to the decimal number that the key holds, 0 where it does not exist, and gives the new one.
  // invalid_argument where it holds something else, or where the sum does not fit.
  virtual Future<std::int64_t> add(std::string key, std::int64_t delta) = 0;
  // Stores `desired` if the key holds `expected` (nullopt: if it does not exist).
  virtual Future<StoreExchange> compare_set(std::string key, std::optional<std::string> expected,
                                            std::string desired) = 0;
  // Waits until all the keys exist at one time.
  virtual Future<void> wait(std::vector<std::string> keys, CallOptions options = {}) = 0;
  virtual Future<bool> remove(std::string key) = 0;  // whether it existed
  virtual Future<StoreView> list(std::string prefix) = 0;
  // The view of the prefix, as soon as something under it has changed after that version. Seldom also when
  // nothing has: a store remembers a limited number of removals.
  virtual Future<StoreView> watch(std::string prefix, std::uint64_t after, CallOptions options = {}) = 0;
};

}  // namespace weft::rpc
