// LeaseKeeper: renews a lease of a store while this object exists, about three times within the lease's time.
//
// `lost` is called once, on the loop, when the store reports that the lease has ended (lease_lost). While the
// store cannot be reached, the keeper retries: only the store decides whether the lease has ended. After the
// destruction the lease expires; call Store::revoke() to end it at once. Thread-safe.
#pragma once

#include <weft/rpc/core/loop.h>
#include <weft/rpc/job/store/store.h>

#include <memory>

namespace weft::rpc {

class WEFT_EXPORT LeaseKeeper {
 public:
  using Lost = UniqueFunction<void(const Error&)>;  // with the store's error

  // lease: granted by that store. The first renewal follows after a third of the lease's time. Does not
  // block.
  LeaseKeeper(std::shared_ptr<Store> store, std::shared_ptr<Loop> loop, StoreLease lease, Lost lost);
  ~LeaseKeeper();  // `lost` may destroy the keeper
  LeaseKeeper(const LeaseKeeper&) = delete;
  LeaseKeeper& operator=(const LeaseKeeper&) = delete;

  // The time since the last renewal.
  std::chrono::nanoseconds silence() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace weft::rpc
