// LeaseKeeper: renews a lease of a store for as long as this object lives, about three times within the
// lease's time.
//
// `lost` is called once, on the loop, when the store says that the lease has ended (lease_lost).
// While the store cannot be reached it is asked again and again: whether the lease has ended is for the store
// to say. Destroying the keeper leaves the lease to its end; revoke() it to end it at once. Thread-safe.
#pragma once

#include <weft/rpc/core/loop.h>
#include <weft/rpc/store/store.h>

#include <memory>

namespace weft::rpc {

class WEFT_EXPORT LeaseKeeper {
 public:
  using Lost = UniqueFunction<void(const Error&)>;

  LeaseKeeper(std::shared_ptr<Store> store, std::shared_ptr<Loop> loop, StoreLease lease, Lost lost);
  ~LeaseKeeper();  // may be called by what `lost` does
  LeaseKeeper(const LeaseKeeper&) = delete;
  LeaseKeeper& operator=(const LeaseKeeper&) = delete;

  // For how long the store has not renewed it.
  std::chrono::nanoseconds silence() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace weft::rpc
