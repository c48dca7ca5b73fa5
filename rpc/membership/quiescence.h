// Quiescence: that no call is under way any more between members of a job, found out in waves.
//
// A wave is an all_gather at which a member arrives once it has no call under way itself, with the numbers of
// requests that it has sent to the other members and received from them so far. Two waves in a row in which
// no number has changed, and as many requests were received as sent, prove that between the two nobody had a
// call under way and no request was on its way: so none will come of those that there were (the four counters
// of F. Mattern, Algorithms for Distributed Termination Detection, 1987).
//
// Every member judges the same waves, so all end alike. Owned by its own callbacks until it has ended; runs
// on one loop of its agent.
#pragma once

#include <weft/rpc/agent/membership.h>
#include <weft/rpc/codec/struct_codec.h>

#include <map>
#include <memory>
#include <optional>
#include <string>

namespace weft::rpc::detail {

// What a member says at a wave. A value.
struct MemberWork {
  bool cancelled = false;  // it no longer waits
  bool given_up = false;   // its deadline has passed while it had calls under way: these
  std::uint64_t served = 0, made = 0;
  std::uint64_t sent = 0, received = 0;  // over the connections that there are to the others
  std::uint64_t ever = 0;                // all its requests, also over connections that have ended
  friend bool operator==(const MemberWork&, const MemberWork&) = default;
};
WEFT_CODEC(MemberWork, cancelled, given_up, served, made, sent, received, ever)

using Wave = std::map<std::string, MemberWork>;  // by the member's name

// Whether the second of two waves in a row proves that nothing is under way.
WEFT_EXPORT bool proves_quiet(const Wave& before, const Wave& now);
// The error that all end with where a member has given up or no longer waits.
WEFT_EXPORT std::optional<Error> given_up(const Wave& wave);

class Quiescence : public std::enable_shared_from_this<Quiescence> {
 public:
  // As Job::quiesce.
  static Future<void> of(std::shared_ptr<AgentCore> core, std::shared_ptr<Membership> membership,
                         CollectiveOptions options);

  Quiescence(std::shared_ptr<AgentCore> core, std::shared_ptr<Membership> membership,
             CollectiveOptions options);

 private:
  // All on the loop.
  void look();  // arrives, or looks again later
  void look_later();
  void arrive(const MemberWork& work);
  void arrived(Result<std::map<std::string, Buffer>>&& gathered);
  void cancel();
  void end(Result<void> result);
  MemberWork work() const;

  const std::shared_ptr<AgentCore> core_;
  const std::shared_ptr<Membership> membership_;
  const CollectiveOptions options_;
  const std::shared_ptr<Loop> loop_;
  const Clock::time_point deadline_;
  std::optional<Promise<void>> promise_;  // none: somebody has cancelled, or it is over
  bool cancelled_ = false;                // the others are to be told: at the next wave
  bool over_ = false;
  bool in_wave_ = false;
  Wave before_;
  std::chrono::milliseconds pause_;
};

}  // namespace weft::rpc::detail
