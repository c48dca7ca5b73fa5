// member_resolver: the replicas of a PeerSet from the records of a job's members, for agents inside and
// outside the job.
//
//   rpc::PeerSet workers{agent, rpc::member_resolver(store, [](const rpc::Member& member) {
//     return member.metadata.contains("market");
//   })};
//
// `store` is the job's store (docs/membership.md): its file, its etcd prefix, or a RemoteStore at rank 0. The
// replicas are the present members for which `wanted` returns true, each with the first of its addresses.
// Members without an address are left out. The resolver shares the ownership of the store. A query fails with
// the store's error, or with protocol_error for a malformed record. If a query fails, the set keeps its last
// result.
#pragma once

#include <weft/rpc/balance/peer_set.h>
#include <weft/rpc/job/membership/member.h>
#include <weft/rpc/job/store/store.h>

#include <functional>

namespace weft::rpc {

// wanted: called on any thread; null: all members.
WEFT_EXPORT PeerSet::Resolver member_resolver(std::shared_ptr<Store> store,
                                              std::function<bool(const Member&)> wanted = nullptr);

}  // namespace weft::rpc
