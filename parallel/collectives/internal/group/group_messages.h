// GroupMessages: the messages between two members that are in flight here: sent and not received yet, or
// expected and not arrived yet (mailbox.h). Thread-safe.
#pragma once

#include <weft/parallel/collectives/internal/group/backend.h>
#include <weft/parallel/collectives/internal/group/group_failure.h>
#include <weft/parallel/collectives/internal/group/mailbox.h>
#include <weft/parallel/collectives/operation/point_to_point.h>

namespace weft::collectives {

// One side of a message between two members.
struct GroupMessage {
  std::uint64_t tag = 0;
  std::string type;  // "float32[4]"; equal on both sides
  rpc::Site site;
  rpc::Buffer bytes;                                // the sent bytes, or the destination
  std::optional<std::chrono::nanoseconds> timeout;  // none: the default of the group
  bool any_shape = false;                           // of the other side
};

class WEFT_EXPORT GroupMessages final : public GroupPart {
 public:
  // group: the owner, with `failure` and `backend`.
  GroupMessages(GroupMember& group, GroupFailure& failure, Backend& backend)
      : group_(group), failure_(failure), backend_(backend), mailbox_(group.describe(group.rank())) {}

  // Cancelling a future aborts the group.
  rpc::Future<void> send(int to, GroupMessage message);  // completes when it has been received
  rpc::Future<int> receive(std::optional<int> from, GroupMessage message);        // returns the sender
  rpc::Future<rpc::Buffer> receive_any_size(int from, GroupMessage message);      // returns the bytes
  rpc::Future<Mailbox::Received> receive_tensor(int from, GroupMessage message);  // of any dtype and shape
  // Takes the place of a message that this rank refuses with the error `why`: the other side fails with
  // invalid_argument and the text of `why`. peer: nullopt: any rank. An invalid rank has no other side.
  void decline(PointToPoint::Kind kind, std::optional<int> peer, std::uint64_t tag, rpc::Site site,
               const std::exception_ptr& why);

  // A message of a member. Completes when it has been received. lent: its bytes are in the sender's memory,
  // at that offset.
  rpc::Future<void> deliver(int from, std::uint64_t tag, std::string type, rpc::Buffer bytes,
                            bool lent = false);
  rpc::Future<void> deliver_lent(int from, std::uint64_t tag, std::string type, std::uint64_t offset,
                                 std::uint64_t bytes);

  // See GroupPart.
  bool awaits(int rank, std::uint64_t) override;
  rpc::Clock::time_point check_deadlines(rpc::Clock::time_point now) override;
  void fail(const rpc::Error& error) override;

 private:
  struct SentMessage {  // a message that was sent and is not received yet
    int to;
    std::string what;
    rpc::Clock::time_point deadline;
    rpc::Promise<void> promise;
    FlightRecorder::Ticket ticket;
  };
  void send_now(int to, const std::string& what, const GroupMessage& message, rpc::Promise<void> promise);
  void send_over(std::uint64_t number, const rpc::Result<void>& result);
  rpc::Future<Mailbox::Received> take(std::optional<int> from, GroupMessage message,
                                      std::optional<std::size_t> size);

  GroupMember& group_;
  GroupFailure& failure_;
  Backend& backend_;

  // In turn:
  Mailbox mailbox_;
  std::map<std::uint64_t, SentMessage> sent_;  // by number
  std::uint64_t sends_ = 0;
};

}  // namespace weft::collectives
