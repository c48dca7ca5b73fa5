// GroupService: the messages between the members of groups. As thread-safe as CollectivesLayer.
//
//  data      a message of a collective's plan, with the hash of its signature
//  message   from one member to another; answered when it has been received
//  lent_message  a message whose receiver reads the bytes in the memory that it shares with the sender
//  give      a value, to rank 0. When all members have given theirs, the answer has all values, or the number
//            of the launch. Of a monitored barrier, the answer has the missing ranks
//  disagree  the sender's signature of a collective, to all, after a message with another hash
//  failed    the group has failed, to all: a member died, a deadline has passed, or the group was aborted
//  left      the member has completed so many collectives, and takes no further part
//  standing  a question of a waiting member: whether this member has started a collective
//  activity  a question of any agent: whether this agent takes part in a group, and what its groups do
//  flight    a request of any agent, such as `weft dash`, for the flight recorders of the groups here
//
// All of them run on the loop. Messages of one member run in the order in which it sent them.
#pragma once

#include <weft/rpc/agent/agent.h>

namespace weft::collectives {

class CollectivesLayer;

// The id of a group, unique over all agents: the incarnation of rank 0, and a number that rank 0 counts.
struct GroupId {
  std::uint64_t origin = 0, number = 0;
  friend auto operator<=>(const GroupId&, const GroupId&) = default;
};
WEFT_CODEC(GroupId, origin, number)
// Identifies a round of values, a launch or the monitored barrier in flight within its group.
struct RoundKey {
  std::uint64_t number = 0;  // of a round of values
  std::string launch = {};   // the name of a launch; empty: no launch
  bool monitored = false;    // the monitored barrier
  friend auto operator<=>(const RoundKey&, const RoundKey&) = default;
};
WEFT_CODEC(RoundKey, number, launch, monitored)

// The state of a member, which shows whether its program makes progress.
struct Activity {
  bool takes_part = false;  // a group of the asked name exists here, or is being created
  // Changes if the program makes progress: the collectives that all groups of the agent have begun, the
  // messages that they have received, and the groups that it has created.
  std::uint64_t begun = 0;
};
WEFT_CODEC(Activity, takes_part, begun)

struct WEFT_EXPORT GroupService {
  // Remote methods. Only members of the group call them, except flight(). If CollectivesLayer::deliver()
  // returns an error, for example for an unknown group, message, lent_message and give fail with this error,
  // and notifications (data, disagree, failed, left) are dropped. For an unknown group, standing returns
  // false.
  void data(rpc::CallContext& call, GroupId group, std::uint64_t sequence, std::uint32_t label,
            std::uint64_t hash, rpc::Buffer bytes);
  rpc::Future<void> message(rpc::CallContext& call, GroupId group, std::uint64_t tag, std::string type,
                            rpc::Buffer bytes);
  rpc::Future<void> lent_message(rpc::CallContext& call, GroupId group, std::uint64_t tag, std::string type,
                                 std::uint64_t offset, std::uint64_t bytes);
  rpc::Future<std::vector<rpc::Buffer>> give(rpc::CallContext& call, GroupId group, RoundKey round,
                                             std::string meaning, std::string site, rpc::Buffer value,
                                             bool wants_all, std::int64_t limit);
  void disagree(rpc::CallContext& call, GroupId group, std::uint64_t sequence, std::string signature);
  void failed(rpc::CallContext& call, GroupId group, rpc::ErrorKind kind, std::string text);
  void left(rpc::CallContext& call, GroupId group, std::uint64_t completed);
  bool standing(rpc::CallContext& call, GroupId group, std::uint64_t sequence);
  Activity activity(rpc::CallContext& call, std::string group);
  // A dump of each group as JSON (flight_dump.h), with the operations that have not completed and, in
  // addition, the last `latest` operations.
  std::vector<std::string> flight(rpc::CallContext& call, std::uint64_t latest);

  using Service =
      rpc::Service<"weft.collectives", rpc::Method<"data", &GroupService::data, rpc::non_blocking>,
                   rpc::Method<"message", &GroupService::message, rpc::non_blocking>,
                   rpc::Method<"lent_message", &GroupService::lent_message, rpc::non_blocking>,
                   rpc::Method<"give", &GroupService::give, rpc::non_blocking>,
                   rpc::Method<"disagree", &GroupService::disagree, rpc::non_blocking>,
                   rpc::Method<"failed", &GroupService::failed, rpc::non_blocking>,
                   rpc::Method<"left", &GroupService::left, rpc::non_blocking>,
                   rpc::Method<"standing", &GroupService::standing, rpc::non_blocking>,
                   rpc::Method<"activity", &GroupService::activity, rpc::idempotent, rpc::non_blocking>,
                   rpc::Method<"flight", &GroupService::flight, rpc::idempotent, rpc::non_blocking>>;

  std::shared_ptr<CollectivesLayer> layer;  // has the groups
};

}  // namespace weft::collectives
