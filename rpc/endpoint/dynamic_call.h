// Calls of methods that are known by name alone, their arguments written value by value: for tools, gateways
// and other programs without the header of the service. list_methods() returns the names and types.
//
//   DynamicReply reply = call_by_name(peer, "market.last", 1, [](OutgoingMessage& message) {
//                          message.argument(0).set_text("ACME");
//                        }).get();
//   reply.result().find_field("price", 0, price);
//
// A result that is a stream is read with DynamicStream (rpc/stream/dynamic_stream.h).
// Thread-safety: call_by_name() as Peer; a reply, one thread at a time.
#pragma once

#include <weft/rpc/endpoint/peer.h>

namespace weft::rpc {

struct WEFT_EXPORT DynamicReply {
  std::shared_ptr<IncomingMessage> message;                 // null: of a notification
  ValueReader result() const { return message->result(); }  // valid as long as the message
};

struct DynamicCallOptions {
  std::uint64_t signature = 0;  // name_hash() of the canonical text; 0: unknown
  bool notify = false;          // not answered: completes when the request has been sent
};

// `encode` writes every argument, here and at once; what it throws is thrown. Deadline, metadata and the call
// that this one serves are the peer's (Peer::with, Peer::with_metadata). Errors are those of a typed call.
WEFT_EXPORT Future<DynamicReply> call_by_name(const Peer& peer, std::string_view method,
                                              std::size_t arguments,
                                              const std::function<void(OutgoingMessage&)>& encode,
                                              DynamicCallOptions options = {});

}  // namespace weft::rpc
