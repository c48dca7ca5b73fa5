// member_resolver: a PeerSet's replicas by the records of a job's members, for agents in the job and outside
// it.
//
//   rpc::PeerSet workers{agent, rpc::member_resolver(store, [](const rpc::Member& member) {
//     return member.metadata.contains("market");
//   })};
//
// `store` is the job's (docs/membership.md): its file, its etcd prefix, or a RemoteStore at rank 0. Replicas
// are the members that are here and `wanted`, by the first of their addresses; those that listen nowhere are
// left out. The resolver keeps the store. Errors of a query: the store's, protocol_error where a record is
// none; the set goes on with what it knew.
#pragma once

#include <weft/rpc/agent/members.h>
#include <weft/rpc/balance/peer_set.h>
#include <weft/rpc/store/store.h>

#include <functional>

namespace weft::rpc {

// wanted: any thread; null: all.
WEFT_EXPORT PeerSet::Resolver member_resolver(std::shared_ptr<Store> store,
                                              std::function<bool(const Member&)> wanted = nullptr);

}  // namespace weft::rpc
