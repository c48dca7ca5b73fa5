// Joining: the steps by which an agent becomes a member, from the first access to the store to the
// publication of the agent's record.
//
// The steps, in this order: meet rank 0 through the program's store (if the job has one), grant a lease,
// agree on the kind of the world, claim the rank (in a fixed world), claim the name, call the host (if the
// job has one), publish the record. While the store cannot be reached, Joining retries, because agents of a
// job start in any order. It runs as a task on the agent's handler threads. Thread-safe.
#pragma once

#include <weft/rpc/core/mutex.h>
#include <weft/rpc/endpoint/peer.h>
#include <weft/rpc/job/membership/roster.h>
#include <weft/rpc/job/membership/store_access.h>
#include <weft/rpc/job/store/lease_keeper.h>

namespace weft::rpc::detail {

class Joining : public std::enable_shared_from_this<Joining> {
 public:
  struct Joined {
    MemberRecord record;                  // the published record
    LeaseId lease = no_lease;             // the lease of the record
    std::shared_ptr<LeaseKeeper> keeper;  // renews the lease; null: no lease
    std::shared_ptr<Store> store;         // the job's store
  };
  using MetHost = std::function<void(const MemberRecord&)>;

  // met_host: called before this agent calls the host. lost: called if the lease is lost, while this agent
  // joins or later.
  Joining(std::shared_ptr<AgentCore> core, const Rendezvous& rendezvous, const StoreAccess& access,
          MetHost met_host, std::function<void(const Error&)> lost);

  static Task<Joined> run(std::shared_ptr<Joining> self);
  void stop();                   // run() fails as soon as possible, with its last error
  std::string obstacle() const;  // why run() has not completed yet, as text for messages

 private:
  static Task<void> publish_host(std::shared_ptr<Joining> self);
  static Task<void> find_host(std::shared_ptr<Joining> self);
  static Task<void> agree_on_world(std::shared_ptr<Joining> self);
  static Task<bool> take_rank(std::shared_ptr<Joining> self);
  static Task<void> take_name(std::shared_ptr<Joining> self);
  static Task<void> await_end(std::shared_ptr<Joining> self, MemberRecord other);
  static Task<void> meet_host(std::shared_ptr<Joining> self);
  template <class T>
  static Task<T> patiently(std::shared_ptr<Joining> self, std::function<Future<T>()> ask);
  // Runs a function of the program's store on a separate thread. stop() ends the wait.
  template <class T>
  Future<T> on_separate_thread(std::function<T()> ask);
  std::vector<std::string> published_addresses() const;  // may block
  void meets(std::string obstacle);
  Future<void> pause();
  void end_pause();
  void end_ask();
  bool stopped() const;
  Error of_another_world(const std::string& world, const std::string& own) const;
  Error name_taken(const MemberRecord& other) const;
  bool is_host() const { return rendezvous_.rank == 0 && (rendezvous_.fixed_world || access_.with_host); }

  const std::shared_ptr<AgentCore> core_;
  const Rendezvous rendezvous_;
  const MetHost met_host_;
  const std::function<void(const Error&)> lost_;

  // Used by the task only, except the loop, which is constant.
  StoreAccess access_;
  MemberRecord record_;
  StoreLease lease_;
  std::shared_ptr<LeaseKeeper> keeper_;

  mutable Mutex mutex_;
  bool stopped_ WEFT_GUARDED_BY(mutex_) = false;
  std::shared_ptr<Promise<void>> pause_ WEFT_GUARDED_BY(mutex_);
  std::function<void()> end_ask_ WEFT_GUARDED_BY(mutex_);  // ends the wait of on_separate_thread()
  std::string obstacle_ WEFT_GUARDED_BY(mutex_);
};

inline std::string member_key(const std::string& name) {
  return std::string(membership_keys::members) + name;
}

// Joining fails if the store cannot be reached for this time.
inline constexpr auto reach_timeout = std::chrono::minutes{5};

}  // namespace weft::rpc::detail
