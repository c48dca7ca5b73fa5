// call_by_name: calls a method by its name, with arguments that the caller writes value by value. It is for
// tools, gateways and other programs without the header of the service. list_methods() returns the names and
// types.
//
//   DynamicReply reply = call_by_name(peer, "market.last", 1, [](OutgoingMessage& message) {
//                          message.argument(0).set_text("ACME");
//                        }).get();
//   reply.result().find_field("price", 0, price);
//
// A result that is a stream is read with DynamicStream (rpc/stream/stream.h).
// Thread-safety: call_by_name() as Peer; a reply may be used by one thread at a time.
#pragma once

#include <weft/rpc/endpoint/peer.h>

namespace weft::rpc {

struct WEFT_EXPORT DynamicReply {
  std::shared_ptr<IncomingMessage> message;                 // null for a notification
  ValueReader result() const { return message->result(); }  // valid as long as the message
};

// Options of one call_by_name(), in addition to those of the peer.
struct DynamicCallOptions {
  std::uint64_t signature = 0;  // name_hash() of the canonical text of the signature; 0: unknown
  bool notify = false;          // the call has no reply, and completes when the callee has accepted it
};

// Before call_by_name() returns, it calls `encode`, which must write every argument. Exceptions of `encode`
// are thrown to the caller. Set deadline, metadata and the served call on the peer (Peer::with,
// Peer::with_metadata). The errors are the same as those of a typed call.
WEFT_EXPORT Future<DynamicReply> call_by_name(const Peer& peer, std::string_view method,
                                              std::size_t arguments,
                                              const std::function<void(OutgoingMessage&)>& encode,
                                              DynamicCallOptions options = {});

}  // namespace weft::rpc
