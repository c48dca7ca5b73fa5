// Board: the state of an elastic job as one worker sees it. The job's store has the generation and the ready
// workers; the job's members show which workers are alive.
//
//   elastic/NAME/generation    to_text(Generation): the latest one
//   elastic/NAME/ready/WORKER  "INCARNATION ORDER": this worker takes part in the next generation
//   elastic/NAME/arrivals      how many workers have announced themselves
//
// A Board watches the store and the members, and keeps copies of what it reads. Its callbacks keep it alive
// until close(). Thread-safe; functions that ask the store block, and must not be called on threads of the
// agent.
#pragma once

#include <weft/parallel/elastic/plan/generation.h>
#include <weft/rpc/core/mutex.h>
#include <weft/rpc/job/job.h>
#include <weft/rpc/job/store/store.h>

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace weft::elastic::detail {

class Board : public std::enable_shared_from_this<Board> {
 public:
  struct View {
    std::uint64_t version = 0;  // the version of this board: grows with every change
    Generation current = {};
    std::optional<std::string> text = {};    // of `current`, as the store holds it
    std::vector<Candidate> candidates = {};  // workers that are ready and present
    std::set<rpc::AgentId> ready = {};       // also workers that this board has not seen as members yet
    std::set<rpc::AgentId> gone = {};        // workers that have left the job or were lost

    bool is_unavailable(const rpc::AgentId& worker) const {
      return gone.contains(worker) || !ready.contains(worker);
    }
  };

  static std::shared_ptr<Board> open(const rpc::Job& job, const std::string& name);
  void close();

  void announce();                          // this worker is ready
  void withdraw() { remove(agent_.id()); }  // this worker is no longer ready
  // Declares that this incarnation of the worker is no longer ready.
  void remove(const rpc::AgentId& worker);
  // Declares that this incarnation of the worker is no longer ready, because it makes no progress, and tells
  // the job's launcher. No effect if the worker is not ready.
  void exclude(const rpc::AgentId& worker, const std::string& why);
  // If this worker is excluded, ends that, and returns the reason.
  std::optional<std::string> end_exclusion();
  // Replaces the generation that the view has seen, unless another worker has replaced it already.
  void replace(const View& seen, const Generation& next);

  View view() const;  // the last copy. Throws as wait() does
  View refresh();     // reads the store first
  // Blocks until the version differs from `version`, and returns true. Returns false if the version is still
  // the same at the time `until`. Throws the error that has ended this agent's membership of the job.
  bool wait(std::uint64_t version, rpc::Clock::time_point until) const;
  void poke();  // counts as a change

 private:
  Board(rpc::Agent& agent, std::shared_ptr<rpc::Store> store, const std::string& name);
  std::string ready_key(const std::string& worker) const { return prefix_ + "ready/" + worker; }
  template <class Ask>
  auto ask(Ask ask) const;  // asks the store; repeats for a while if the store cannot be reached

  void look();  // watches the store
  void take_changes(rpc::Result<rpc::StoreChanges>&& changes);
  void look_later();
  void listen();  // watches the job's members
  void take_events(rpc::Result<std::vector<rpc::MemberEvent>>&& events);
  View view_locked() const WEFT_REQUIRES(mutex_);

  rpc::Agent& agent_;
  const std::shared_ptr<rpc::Store> store_;
  const std::string prefix_;
  const std::shared_ptr<rpc::Loop> loop_;  // the loop of pauses
  const std::unique_ptr<rpc::MemberWatch> watch_;

  mutable rpc::Mutex mutex_;
  mutable rpc::Condition changed_;
  std::uint64_t version_ WEFT_GUARDED_BY(mutex_) = 1;
  std::uint64_t store_version_ WEFT_GUARDED_BY(mutex_) = 0;
  std::map<std::string, std::string> entries_ WEFT_GUARDED_BY(mutex_);  // of the store, below the prefix
  std::set<rpc::AgentId> present_ WEFT_GUARDED_BY(mutex_);
  std::set<rpc::AgentId> gone_ WEFT_GUARDED_BY(mutex_);
  std::optional<rpc::Error> failure_ WEFT_GUARDED_BY(mutex_);
  bool closed_ WEFT_GUARDED_BY(mutex_) = false;
  std::uint64_t looks_ WEFT_GUARDED_BY(mutex_) = 0;  // the number of the latest watch, look_
  rpc::Future<bool> look_ WEFT_GUARDED_BY(mutex_);
  std::uint64_t listens_ WEFT_GUARDED_BY(mutex_) = 0;  // the number of the latest watch, listen_
  rpc::Future<bool> listen_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::elastic::detail
