// store_resolver: a PeerSet's replicas by what stands in a store under a prefix.
//
//   store->set("services/market/" + name, "tcp://10.0.0.7:7443", lease);         // each replica, of itself
//   rpc::PeerSet markets{agent, rpc::store_resolver(store, "services/market/")};
//
// The value of each key is an agent's address or its name. Under a lease a replica that has died vanishes by
// itself. The resolver keeps the store. Errors of a query are the store's; the set goes on with what it knew.
#pragma once

#include <weft/rpc/balance/peer_set.h>
#include <weft/rpc/store/store.h>

namespace weft::rpc {

WEFT_EXPORT PeerSet::Resolver store_resolver(std::shared_ptr<Store> store, std::string prefix);

}  // namespace weft::rpc
