// GroupValues: the small values and the launches in flight: those that this member has given to rank 0 and
// that are not answered yet and, on rank 0, the rounds that are not complete.
//
// The nth values of all members form a round of values. When a round is complete, each member gets an answer:
// all values, by rank, or no values, if the member wants none. If the members called different operations,
// the answer is invalid_argument, which lists the operation of each member. Launches are collectives that
// become ready in different orders on the ranks of a group, and start in one order. Rank 0 collects the
// members that are ready for a launch, as a round of values. When all members are ready, rank 0 numbers the
// launch and sends the number to them. Each member starts launches in the order of their numbers. So a launch
// never waits for another launch for which some member is not ready. The members that wait in a monitored
// barrier form a round, too. When a deadline of one of them has passed, the round ends with the missing ranks
// as its answer, and the group continues. Thread-safe.
#pragma once

#include <weft/parallel/collectives/internal/group/group_failure.h>
#include <weft/parallel/collectives/internal/group/launch_sequence.h>
#include <weft/rpc/core/serial_executor.h>

namespace weft::collectives {

class WEFT_EXPORT GroupValues final : public GroupPart {
 public:
  using Values = std::vector<rpc::Buffer>;  // by rank

  // group: the owner, with `failure`.
  GroupValues(GroupMember& group, GroupFailure& failure)
      : group_(group), failure_(failure), begins_(*group.loop()) {}

  // give() sends a small value to rank 0, which gathers the values. Its future has all members' values, by
  // rank, or no values if wants_all is false. Cancelling the future aborts the group. All members must
  // reserve rounds in the same order; they may give values in any order.
  std::uint64_t reserve_rounds(std::uint64_t count) { return rounds_reserved_.fetch_add(count); }
  rpc::Future<Values> give(RoundKey round, std::string meaning, rpc::Site site, rpc::Buffer value,
                           bool wants_all, std::optional<std::chrono::nanoseconds> timeout);
  // Calls `begin` on the group's loop when all members are ready for the launch of that name. All members
  // start their launches in the same order. If the group fails, calls `begin` with its error.
  void launch(const std::string& name, LaunchSequence::Begin begin, rpc::Site site,
              std::optional<std::chrono::nanoseconds> timeout);

  // On rank 0: the value of a member. limit: the timeout of give().
  rpc::Future<Values> take(int from, RoundKey round, std::string meaning, std::string site, rpc::Buffer bytes,
                           bool wants_all, std::chrono::nanoseconds limit);

  // See GroupPart.
  bool awaits(int rank, std::uint64_t) override;
  rpc::Clock::time_point check_deadlines(rpc::Clock::time_point now) override;
  void fail(const rpc::Error& error) override;

 private:
  // The additional time in which rank 0 must answer: rank 0's error names the missing ranks.
  static constexpr std::chrono::seconds timeout_for_answers{5};

  struct Given {  // a value that was given to rank 0 and is not answered yet
    std::string what;
    rpc::Clock::time_point deadline;  // by which rank 0 must answer; max on rank 0
    rpc::Promise<Values> promise;
    std::optional<FlightRecorder::Ticket>
        ticket;  // none: a launch, whose collectives are recorded, or a barrier
  };
  struct Value {          // one member's part in a round
    std::string meaning;  // "all_gather_object(string)": equal on all members
    std::string site;
    rpc::Buffer bytes;
    bool wants_all;
    rpc::Clock::time_point deadline;  // for all members to arrive
    rpc::Promise<Values> promise;
  };
  using Round = std::map<int, Value>;  // by rank
  void end(const RoundKey& key, Round round);
  std::vector<int> missing_in(const Round& round) const;
  void answered(const RoundKey& round, rpc::Result<Values> values);
  void launch_numbered(const rpc::Buffer& number, LaunchSequence::Begin begin);

  GroupMember& group_;
  GroupFailure& failure_;
  std::atomic<std::uint64_t> rounds_reserved_{0};
  rpc::SerialExecutor begins_;  // starts launches in order: posts to a loop have no order

  // In turn:
  std::map<RoundKey, Round> rounds_;     // on rank 0
  std::uint64_t complete_launches_ = 0;  // on rank 0
  std::map<RoundKey, Given> given_;      // by round
  LaunchSequence launches_;              // the launches for which all members are ready
};

}  // namespace weft::collectives
