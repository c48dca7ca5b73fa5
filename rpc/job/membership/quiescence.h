// Quiescence: detects, in waves, that no call is in flight between members of a job.
//
// A wave is an all_gather. A member calls the all_gather when it has no call in flight. The member passes two
// numbers: the requests that it has sent to the other members so far, and the requests that it has received
// from them. If no number changes between two waves in a row, and as many requests were received as sent,
// then no member had a call in flight between the two waves, and no request was in transit. So no earlier
// call can cause further calls (the four counters of F. Mattern, Algorithms for Distributed Termination
// Detection, 1987).
//
// Every member evaluates the same waves, so all get the same result. Owned by its own callbacks until it has
// ended; runs on one loop of its agent.
#pragma once

#include <weft/rpc/codec/struct_codec.h>
#include <weft/rpc/endpoint/agent_core.h>
#include <weft/rpc/job/membership/member.h>

#include <map>
#include <memory>
#include <optional>
#include <string>

namespace weft::rpc::detail {

// The contribution of a member to a wave. A value.
struct MemberWork {
  bool cancelled = false;  // the caller has cancelled
  bool given_up = false;   // the deadline has passed; `served` and `made` calls were in flight
  std::uint64_t served = 0, made = 0;
  std::uint64_t sent = 0, received = 0;  // requests over the existing connections to the other members
  std::uint64_t ever = 0;                // all requests, including requests over connections that have ended
  friend bool operator==(const MemberWork&, const MemberWork&) = default;
};
WEFT_CODEC(MemberWork, cancelled, given_up, served, made, sent, received, ever)

using Wave = std::map<std::string, MemberWork>;  // by the member's name

// Whether the second of two consecutive waves proves that no call is in flight.
WEFT_EXPORT bool proves_quiet(const Wave& before, const Wave& now);
// The error for all members, if a member has given up or cancelled.
WEFT_EXPORT std::optional<Error> given_up(const Wave& wave);

class JobMembership;

class Quiescence : public std::enable_shared_from_this<Quiescence> {
 public:
  // As Job::quiesce.
  static Future<void> of(std::shared_ptr<AgentCore> core, std::shared_ptr<JobMembership> membership,
                         CollectiveOptions options);

  Quiescence(std::shared_ptr<AgentCore> core, std::shared_ptr<JobMembership> membership,
             CollectiveOptions options);

 private:
  // All run on the loop.
  void look();  // calls the wave if no call is in flight; otherwise looks again later
  void look_later();
  void arrive(const MemberWork& work);
  void arrived(Result<std::map<std::string, Buffer>>&& gathered);
  void cancel();
  void end(Result<void> result);
  MemberWork work() const;

  const std::shared_ptr<AgentCore> core_;
  const std::shared_ptr<JobMembership> membership_;
  const CollectiveOptions options_;
  const std::shared_ptr<Loop> loop_;
  const Clock::time_point deadline_;
  std::optional<Promise<void>> promise_;  // nullopt: cancelled, or completed
  bool cancelled_ = false;                // true: the next wave tells the other members
  bool over_ = false;
  bool in_wave_ = false;
  Wave before_;
  std::chrono::milliseconds pause_;
};

}  // namespace weft::rpc::detail
