// store_resolver: the replicas of a PeerSet from the values under a prefix of a store.
//
//   store->set("services/market/" + name, "tcp://10.0.0.7:7443", lease);         // each replica does this
//   rpc::PeerSet markets{agent, rpc::store_resolver(store, "services/market/")};
//
// The value of each key is an agent's address or name. A replica that sets its key with a lease is removed
// when it dies. The resolver shares the ownership of the store. If the store fails, the query fails with the
// store's error, and the set keeps its last result.
#pragma once

#include <weft/rpc/balance/peer_set.h>
#include <weft/rpc/job/store/store.h>

namespace weft::rpc {

WEFT_EXPORT PeerSet::Resolver store_resolver(std::shared_ptr<Store> store, std::string prefix);

}  // namespace weft::rpc
