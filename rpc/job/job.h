// Job: the handle with which a program uses the job of its agent.
//
// A Job creates and owns its agent, or refers to an agent that outlives the Job. The agent makes calls and
// serves methods. The Job provides the agent's rank, the other members, and the operations that all members
// call together. Serve methods before join(), because other members may call them from then on. Errors:
// collectives and watches fail with failed_precondition before join(), and all operations fail with the job's
// error after the job has failed. Thread-safety: all functions may be called from any thread.
#pragma once

#include <weft/rpc/agent/agent.h>
#include <weft/rpc/codec/packed.h>
#include <weft/rpc/job/membership/member.h>
#include <weft/rpc/job/membership/rendezvous.h>

#include <atomic>

namespace weft::rpc {

class Store;

// The options of an agent that is a member of a job.
struct MemberOptions : AgentOptions {
  Rendezvous rendezvous;

  // Sets the heartbeat and the lease so that this agent detects the loss of a peer, and the job that of this
  // member, within this time. Choose a time that is longer than the longest pause of a healthy process. The
  // environment sets it: WEFT_DETECTION, in seconds; in an elastic world 5 s by default.
  WEFT_EXPORT void detect_within(std::chrono::nanoseconds time);
};

class WEFT_EXPORT Job {
 public:
  // Changes options that come from the environment or a URL, for example the number of handler threads.
  using Adjust = std::function<void(MemberOptions&)>;

  // Creates the agent. Throws invalid_argument if the rendezvous is invalid.
  explicit Job(const MemberOptions& options, Layers layers = {});
  // The job of an agent that was created with layer(). Throws failed_precondition if the agent has none.
  explicit Job(Agent& agent);
  // Makes an agent that the program creates itself a member of a job: pass it as the last of its layers.
  static Layer layer(Rendezvous rendezvous);
  // The job that the environment describes, as rpc::from_environment() reads it (docs/launching.md).
  static Job from_environment(Layers layers = {}, const Adjust& adjust = nullptr);
  // The job that a URL describes, as rpc::from_url() reads it: "tcp://host:port?rank=1&world_size=4".
  static Job from_url(const std::string& url, Layers layers = {}, const Adjust& adjust = nullptr);

  // The member's agent, and the agent's name in the job.
  Agent& agent() const { return *agent_; }
  const std::string& name() const { return agent_->name(); }
  // As in the options (Rendezvous). In an elastic world, rank() may be Rendezvous::no_rank, and world_size()
  // is not the number of members.
  std::size_t rank() const { return rendezvous().rank; }
  std::size_t world_size() const { return rendezvous().world_size; }
  const Rendezvous& rendezvous() const;
  // The member of a fixed world that has this rank. Wait for its join first (join() or wait_for()). Throws
  // not_found if no member with that rank is known, failed_precondition if the world is not fixed.
  Peer peer(std::size_t rank) const;

  // Joins, and completes when all ranks of a fixed world have joined. In an elastic world it completes when
  // this member has joined. Otherwise as wait_for().
  Future<void> join(std::chrono::nanoseconds timeout = no_timeout);
  // Joins, and completes when `members` members have joined. In a fixed world, members that have left also
  // count. In an elastic world, only present members count. While the store cannot be reached, it tries again
  // for five minutes. already_exists: another agent has the name or the rank. failed_precondition: the
  // rendezvous states another kind of world (fixed or elastic) or another size than the job has. If the agent
  // could not join, the next call joins again. deadline_exceeded after `timeout`: the error names the ranks
  // that have not joined, or states why this agent has not. The agent then still is a member, or continues to
  // join, until it leaves or ends, and the next call waits again.
  Future<void> wait_for(std::size_t members, std::chrono::nanoseconds timeout = no_timeout);
  // The present members, as the store last reported them, and their changes.
  std::vector<Member> members() const;
  std::unique_ptr<MemberWatch> watch_members();

  // Collectives for small values over all members of a fixed world, or over the members that the options
  // name. barrier() completes when all of them have called it. all_gather() returns the value of each member
  // by the member's name; T must be the same on all members. A collective fails on all members with the same
  // error: deadline_exceeded, which names the members that have not called it; peer_lost; shut_down if a
  // member has left; aborted if a member has cancelled it; type_mismatch. docs/membership.md explains the
  // errors. The overloads without options exist because g++ 12 destroys a default argument twice in a
  // co_await expression.
  Future<void> barrier(CollectiveOptions options);
  Future<void> barrier() { return barrier(CollectiveOptions{}); }
  template <Transferable T>
  Future<std::map<std::string, T>> all_gather(const T& value) {
    return all_gather(value, CollectiveOptions{});
  }
  template <Transferable T>
  Future<std::map<std::string, T>> all_gather(const T& value, CollectiveOptions options) {
    return gather(std::move(options), type_text<T>(), pack(value))
        .then([](Result<std::map<std::string, Buffer>>&& all) {
          return capture([&] {
            std::map<std::string, T> values;
            for (const auto& [name, bytes] : std::move(all).get()) values.emplace(name, unpack<T>(bytes));
            return values;
          });
        });
  }
  // Like barrier(), and also waits until no call is in flight between the members. It does not wait for calls
  // that programs make outside handlers in the meantime. A handler must not wait for quiesce().
  Future<void> quiesce(CollectiveOptions options);
  Future<void> quiesce() { return quiesce(CollectiveOptions{}); }

  // The job's store, for higher layers: their keys begin with the layer's name and '/'. If rank 0 keeps the
  // store, the store ends with that agent. With Rendezvous::program_store, store() throws failed_precondition
  // before this member has joined.
  std::shared_ptr<Store> store() const;

  // The end of the membership. A member without further work either leaves, or serves the other members until
  // they also have no work. If rank 0 keeps the store of an elastic world, rank 0 must serve. In a fixed
  // world that all members have joined, members may leave in any order. After such a rank 0 has left, the
  // other members call each other, use their existing process groups, and leave without an error. Waits,
  // watches, barriers, all_gathers and new process groups then fail with unavailable, which names rank 0, and
  // a loss is known only to the members that have a connection to the lost one.
  Future<void> leave();  // as Agent::leave()
  // Blocks until no other member has work left and every member has released its references; then this member
  // leaves. Returns at once if leave() was called, or if an earlier call has returned. Throws the error of a
  // job that has failed. Throws deadline_exceeded after `timeout`; the agent then remains a member.
  void serve_until_shutdown(std::chrono::nanoseconds timeout = no_timeout);

 private:
  Future<std::map<std::string, Buffer>> gather(CollectiveOptions options, std::string type, Buffer value);

  const std::unique_ptr<Agent> own_;
  Agent* const agent_;
  const std::shared_ptr<detail::JobMembership> membership_;
  std::atomic<bool> left_ = false;
};

}  // namespace weft::rpc
