// PassAdmission: admits the passes of this agent, a trainer, to all objects of a handle.
//
// Under bounded_staleness(k) a pass may have to wait at an object until passes of other trainers end. A pass
// that waits at one object while it is admitted to another could be part of a cycle of waiting passes. So if
// a handle has several objects, each object asks the trainer before a pass first reads the object. When an
// object asks, and also before the pass's step, the trainer requests the admission of the pass to all objects
// of the handle, one after the other. The order is the same for all trainers (by the owner's incarnation,
// then by the object's number there). So a pass waits only for passes that do not wait, or that wait at a
// later object, and no cycle can form (Havender 1968). Handles that share an object count as one handle.
//
// Owner: the agent's dist_optim::OptimizerLayer. Thread-safe.
#pragma once

#include <weft/dist_autograd/pass.h>
#include <weft/dist_optim/service/internal/async_mutex.h>
#include <weft/rpc/core/mutex.h>
#include <weft/rpc/core/task.h>
#include <weft/rref/reference.h>

#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

namespace weft::dist_optim {

class PassAdmission : public std::enable_shared_from_this<PassAdmission> {
 public:
  using Key = std::pair<std::uint64_t, std::uint64_t>;  // the owner's incarnation; the object's number there
  // The objects of a handle, in the order of admission.
  using Objects = std::map<Key, rref::ReferencePtr>;

  // The data that a handle shares with the PassAdmission as long as the handle lives.
  struct Handle {
    std::vector<std::uint64_t> owners;  // the owners' incarnations
    std::string trainer;                // a trainer of this agent; empty: the agent itself
    rpc::Mutex mutex;
    bool known WEFT_GUARDED_BY(mutex) = false;  // attaching has completed
    Objects objects WEFT_GUARDED_BY(mutex);
    std::vector<rpc::Promise<void>> waiting WEFT_GUARDED_BY(mutex);

    // attached(): call it when all owners have answered attach(). when_known(): completes when attached() was
    // called.
    void attached(Objects all);
    rpc::Future<void> when_known();
    Objects objects_so_far() {
      rpc::MutexLock lock(mutex);
      return objects;
    }
  };

  // For the OptimizerLayer of `core`.
  explicit PassAdmission(std::shared_ptr<rpc::AgentCore> core) : core_(std::move(core)) {}
  // Passes of the handle's trainer are admitted to its objects from now on.
  void add(const std::shared_ptr<Handle>& handle);

  // Admits the pass to all objects of the handles to which an object belongs. The object is given by its
  // owner and its number there. Completes when all of these objects have admitted the pass. When the pass
  // ends, all of them release it. failed_precondition if the pass has ended.
  rpc::Future<void> admit(const dist_autograd::PassId& pass, const rpc::AgentId& owner, std::uint64_t object);
  // Admits the pass, as a pass of the handle's trainer, to the objects of the handle; completes at once if
  // all of them have admitted it. version: the pass reads this kept version of each object; nullopt: the
  // newest version. failed_precondition for a pass of another trainer.
  rpc::Future<void> admit(const dist_autograd::PassId& pass, const std::shared_ptr<Handle>& handle,
                          std::optional<std::uint64_t> version = {});

 private:
  struct Admitted {
    AsyncMutex order;
    rpc::Mutex mutex;
    bool over WEFT_GUARDED_BY(mutex) = false;
    std::optional<std::string> trainer WEFT_GUARDED_BY(mutex);
    Objects objects WEFT_GUARDED_BY(mutex);     // the objects that were asked
    std::set<Key> done WEFT_GUARDED_BY(mutex);  // the objects that have admitted the pass
  };

  std::vector<std::shared_ptr<Handle>> handles() const;
  // Adds the objects of all handles to which one of these objects belongs, and so on for the added objects.
  Objects closure(Objects objects) const;
  bool is_admitted(const dist_autograd::PassId& pass, Handle& handle) const;
  std::shared_ptr<Admitted> admitted(const dist_autograd::PassId& pass);
  using Version = std::optional<std::uint64_t>;
  rpc::Future<void> start(const dist_autograd::PassId& pass, rpc::Task<Objects> which, Version version = {});
  static rpc::Task<Objects> objects_with(std::shared_ptr<PassAdmission> self, std::uint64_t owner,
                                         std::uint64_t object);
  static rpc::Task<Objects> objects_of(std::shared_ptr<PassAdmission> self, std::shared_ptr<Handle> handle);
  static rpc::Task<void> admit_all(std::shared_ptr<Admitted> to, dist_autograd::PassId pass,
                                   rpc::Task<Objects> which, Version version);

  const std::shared_ptr<rpc::AgentCore> core_;
  mutable rpc::Mutex mutex_;
  std::vector<std::weak_ptr<Handle>> handles_ WEFT_GUARDED_BY(mutex_);
  std::map<dist_autograd::PassId, std::shared_ptr<Admitted>> passes_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::dist_optim
