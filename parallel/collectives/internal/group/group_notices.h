// Notices: notifications between the members of a group, without a reply. For the group's own sources.
#pragma once

#include <weft/parallel/collectives/internal/group/group_core.h>
#include <weft/parallel/collectives/internal/group/group_service.h>

namespace weft::collectives {

// Sends a notification. `sent` is called when it has been sent, or with the error if it cannot be sent.
template <auto Method, class Sent, class... Arguments>
void post(const rpc::Peer& peer, Sent sent, const Arguments&... arguments) {
  using Found = rpc::FoundMethod<Method>;
  rpc::OutgoingCall call = peer.calls().make(Found::name, Found::id, sizeof...(Arguments));
  call.notify = true;
  rpc::encode_call<typename Found::Type>(call, arguments...);
  peer.calls().start_typed<void>(std::move(call), rpc::DecodeReply<void>{}).then(std::move(sent));
}

template <auto Method, class... Arguments>
void GroupCore::tell_others(const Arguments&... arguments) {
  for (int rank = 0; rank < size(); ++rank)
    if (rank != rank_ && !left_.contains(rank))
      post<Method>(peers_[static_cast<std::size_t>(rank)], [](rpc::Result<void>&&) {}, arguments...);
}

}  // namespace weft::collectives
