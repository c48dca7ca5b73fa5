// RemoteStore: the store that a peer serves (store_service.h). A wait is a call in flight: it fails with
// peer_lost or unavailable if the peer is lost. Thread-safe; futures complete on the loop of the route to the
// peer.
#pragma once

#include <weft/rpc/endpoint/peer.h>
#include <weft/rpc/job/store/store.h>

namespace weft::rpc {

class WEFT_EXPORT RemoteStore final : public Store {
 public:
  explicit RemoteStore(Peer peer) : peer_(std::move(peer)) {}

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

 private:
  Peer peer_;
};

}  // namespace weft::rpc
