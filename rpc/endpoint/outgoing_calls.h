// OutgoingCalls: the calls of this side in one session, from their arrival in the session until their
// answers: first calls that wait for credit or for a connection, then calls that were sent.
//
// It does not refer to connections and frames, except the number of the frame that carried a call. The peer's
// hello grants credit: the number of calls, and of bytes in them, that the peer accepts at a time. A request
// uses credit when it is sent; its answer returns the credit. The credit of notifications is returned by
// frames of their own. A request is sent as soon as some credit of both kinds is left, so one request may
// exceed the granted bytes, and no request waits forever. Control calls use no credit. Owned by the session.
// Thread-safety: none.
#pragma once

#include <weft/rpc/call/pending_call.h>
#include <weft/rpc/core/fifo.h>
#include <weft/rpc/core/id_map.h>

namespace weft::rpc {

class WEFT_EXPORT OutgoingCalls {
 public:
  using Calls = std::vector<std::shared_ptr<PendingCall>>;  // in their order
  // A call that was sent. counts: its method is not a background method.
  struct SentCall {
    std::shared_ptr<PendingCall> call;  // null: the call has ended, but its credit is still in use
    std::uint64_t number = 0;           // of its frame
    std::uint64_t bytes = 0;            // of the credit that it uses
    bool uses_credit = false;           // false: a control call
    bool counts = false;                // as above
  };

  // id_seed: random and secret (id_map.h). max_calls, max_bytes: the credit.
  OutgoingCalls(std::uint64_t id_seed, std::uint64_t max_calls, std::uint64_t max_bytes)
      : max_calls_(max_calls), max_bytes_(max_bytes), sent_(id_seed) {}

  // --- Calls that wait ---
  void hold(std::shared_ptr<PendingCall> call);
  // Whether a call may be sent now, before the calls that wait.
  bool may_send(const PendingCall& call) const { return call.control() || (held_.empty() && has_credit()); }
  // Removes and returns the next call that may be sent; null: none.
  std::shared_ptr<PendingCall> next();
  Calls held() const;
  Calls take_held();

  // --- Calls that were sent ---
  void use_credit(std::uint64_t bytes) {
    ++calls_;
    bytes_ += bytes;
  }
  // Returns credit. If the peer returns more than is in use, the excess is ignored.
  void give_back(std::uint64_t calls, std::uint64_t bytes) {
    calls_ -= std::min(calls_, calls);
    bytes_ -= std::min(bytes_, bytes);
  }
  void sent(std::uint64_t id, SentCall sent) { sent_.insert(id, std::move(sent)); }
  bool awaits(std::uint64_t id) const { return sent_.contains(id); }
  SentCall* find(std::uint64_t id) { return sent_.find(id); }
  // Removes the call, and returns its credit. nullopt: no such call.
  std::optional<SentCall> take(std::uint64_t id);
  Calls in_flight() const;  // the calls that were sent and have not ended, by their ids
  Calls take_all();         // removes and returns in_flight()

  // The credit in use.
  std::uint64_t calls_in_use() const { return calls_; }
  std::uint64_t bytes_in_use() const { return bytes_; }

 private:
  bool has_credit() const { return calls_ < max_calls_ && bytes_ < max_bytes_; }

  const std::uint64_t max_calls_, max_bytes_;
  std::uint64_t calls_ = 0, bytes_ = 0;
  Fifo<std::shared_ptr<PendingCall>> held_, held_control_;
  std::size_t prune_at_ = 64;  // the size at which ended calls are removed from held_
  IdMap<SentCall> sent_;
};

}  // namespace weft::rpc
