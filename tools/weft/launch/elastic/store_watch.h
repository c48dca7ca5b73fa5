// The job's store, as the driver and the keepers of workers use it: opened by its URL, and watched on a loop.
#pragma once

#include <weft/rpc/core/loop.h>
#include <weft/rpc/store/store.h>

#include <functional>
#include <memory>
#include <string>

namespace weft::tool::launch::elastic {

struct OpenedStore {
  std::shared_ptr<rpc::Store> store;
  std::function<void()> close;  // before the end of the program
};

// Of file:///path or etcd://host:port/prefix. Throws UsageError, rpc::Error.
OpenedStore open_store(const std::string& url);

// Passes every change under a prefix to a function, the first time all keys. Asks the store again after
// errors. Thread-safety: members and the function are called on the loop.
class StoreWatch {
 public:
  using Changed = std::function<void(const rpc::StoreChanges& changes)>;

  StoreWatch(std::shared_ptr<rpc::Loop> loop, std::shared_ptr<rpc::Store> store, std::string prefix,
             Changed changed);
  ~StoreWatch();  // the function is not called any more. It may call this itself

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace weft::tool::launch::elastic
