// ServedCalls: the calls of the peer that this side serves in one session, from the arrival of a request
// until its call is destroyed.
//
// It checks permissions and limits, gives the call to its method, and returns the credit of notifications.
// While the peer has not read enough of its replies, further requests wait here (Session::serve_waiting()).
// Owned by the session, on whose loop all functions are called.
#pragma once

#include <weft/rpc/call/incoming_call.h>
#include <weft/rpc/core/fifo.h>
#include <weft/rpc/core/id_map.h>

namespace weft::rpc {

class AgentCore;

class WEFT_EXPORT ServedCalls {
 public:
  using Calls = std::vector<std::shared_ptr<IncomingCall>>;  // by their ids
  using Source = IncomingCall::Source;                       // of a request

  explicit ServedCalls(AgentCore& core);  // core: the agent, which outlives this object

  // A request has arrived. admitted: the connection has reserved its bytes. waits: it waits in any case.
  // accepted: the number of frames that the session has accepted, this one included.
  // Throws protocol_error if its id is in use. Returns whether it counts (MethodEntry::background).
  bool accept(Source source, std::shared_ptr<IncomingMessage> message, bool admitted, bool waits,
              std::uint64_t accepted);
  // A large request was skipped, because there was no room.
  void skip(const Source& source, const Prefix& request);
  // While has_waiting(), serve_next() serves the first call that waits.
  bool has_waiting() const { return !waiting_.empty(); }
  void serve_next(const std::shared_ptr<Loop>& loop);

  // A call is being answered. Returns the number of frames that were accepted up to its request; 0: no such
  // call.
  std::uint64_t answered(std::uint64_t call_id);
  // A call was destroyed. Returns the credit that the peer gets back now; nullopt: none.
  std::optional<CreditInfo> ended(const Carrier::EndedCall& call);
  void cancel(std::uint64_t call_id);
  void cancel_all();  // all but notifications, which are served even if their sender has left
  Calls all() const;

 private:
  struct Served {
    std::weak_ptr<IncomingCall> call = {};
    std::uint64_t bytes = 0;
    std::uint64_t accepted = 0;
    bool control = false;
    bool counted = true;  // in unanswered_: until the reply, which returns the credit
  };
  void refuse(const Source& source, const Prefix& request, const MethodEntry& method, ErrorKind kind,
              const std::string& message);
  static void serve(const std::shared_ptr<IncomingCall>& call);
  void count(const Served& call, std::int64_t sign);

  AgentCore& core_;
  IdMap<Served> calls_;
  Fifo<std::shared_ptr<IncomingCall>> waiting_;
  struct {
    std::uint64_t calls = 0, bytes = 0;  // calls that use credit
    std::uint64_t control = 0;           // calls that use no credit
  } unanswered_;
  // The credit of notifications is returned in batches of less than a quarter of the granted credit, so the
  // peer never waits forever.
  const CreditInfo batch_;
  CreditInfo due_;
};

}  // namespace weft::rpc
