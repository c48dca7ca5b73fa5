// MemoryStore: a store in this process's memory; store_service.h serves it to peers.
//
// All operations except pending waits complete inline, on the caller's thread; a wait completes on the thread
// of the change that satisfies it. Owned through shared_ptr. Thread-safe.
#pragma once

#include <weft/rpc/job/store/store.h>

#include <memory>

namespace weft::rpc {

class WEFT_EXPORT MemoryStore final : public Store {
 public:
  // loop: runs the timers for deadlines of waits and for the expiry of leases. A Future::get() that would
  // block on the loop's thread throws.
  explicit MemoryStore(std::shared_ptr<Loop> loop);
  ~MemoryStore() override;

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

  // Pending waits, and later ones that would block, fail with shut_down; all other operations still work.
  void close();

  std::size_t waiting() const;  // the number of pending waits

 private:
  struct State;
  template <class F>
  auto now(F&& operation);
  template <class Waiting>
  auto later(Waiting waiting);

  std::shared_ptr<State> state_;
};

}  // namespace weft::rpc
