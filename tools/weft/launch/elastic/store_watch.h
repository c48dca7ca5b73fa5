// Functions of the driver and of the keepers of workers for the job's store: opening it by its URL, and
// watching it on a loop.
#pragma once

#include <weft/rpc/core/loop.h>
#include <weft/rpc/job/store/store.h>

#include <functional>
#include <memory>
#include <string>

namespace weft::tool::launch::elastic {

struct OpenedStore {
  std::shared_ptr<rpc::Store> store;
  std::function<void()> close;  // call it before the program ends
};

// Opens file:///path or etcd://host:port/prefix. Throws UsageError, rpc::Error.
OpenedStore open_store(const std::string& url);

// Passes every change under a prefix to a function. The first call has all keys. After an error the watch is
// retried. Thread-safety: members and the function are called on the loop.
class StoreWatch {
 public:
  using Changed = std::function<void(const rpc::StoreChanges& changes)>;

  StoreWatch(std::shared_ptr<rpc::Loop> loop, std::shared_ptr<rpc::Store> store, std::string prefix,
             Changed changed);
  ~StoreWatch();  // no call of the function follows; the function may destroy the watch

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace weft::tool::launch::elastic
