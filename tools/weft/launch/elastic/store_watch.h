// The job's store, as the driver and the keepers of workers use it: opened by its URL, and watched on an
// io_context.
#pragma once

#include <weft/rpc/core/future.h>
#include <weft/rpc/store/store.h>

#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>

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

// Passes every change under a prefix to a function, the first time all keys. Asks again after errors. Owned
// by its user, who outlives the io_context's handlers or calls close(). Thread-safety: members and the
// function are called by the thread of the io_context.
class StoreWatch {
 public:
  using Changed = std::function<void(const rpc::StoreChanges& changes)>;  // throws rpc::Error: asked again

  StoreWatch(asio::io_context& context, std::shared_ptr<rpc::Store> store, std::string prefix,
             Changed changed);
  ~StoreWatch();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace weft::tool::launch::elastic
