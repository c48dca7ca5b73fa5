// LocalSteps: the steps in flight whose objects all live on this owner. When all objects of such a step are
// prepared, the owner itself decides the step, so the step costs the trainer one round trip. A snapshot of
// several objects delays these steps while it reads.
//
// Owner: the agent's dist_optim::OptimizerLayer. Thread-safe; promises complete and owned parameters are
// called outside the mutex.
#pragma once

#include <weft/dist_optim/service/internal/owned_parameters_guard.h>
#include <weft/dist_optim/service/step_messages.h>
#include <weft/rpc/core/mutex.h>

#include <list>
#include <map>

namespace weft::dist_optim {

class WEFT_EXPORT LocalSteps {
 public:
  // One object of a step, with the answer of its owner and the promise of the outcome.
  struct Object {
    std::shared_ptr<OwnedParametersGuard> guard;  // may be null if the part was refused
    rpc::Result<StepPart> part;
    std::shared_ptr<rpc::Promise<StepOutcome>> promise;
  };

  // One of the step's `objects` objects has prepared or refused its part. When all objects have arrived, the
  // promises complete: for an object that refused, with its refusal; for the others, with the outcome.
  void arrive(const std::string& trainer, const StepRequest& request, std::size_t objects, Object object);
  // The trainer has given up a step, or is gone. No effect if the step is decided or unknown.
  void abort(const std::string& trainer, std::uint64_t number);

  // Delays steps: from the call of `ready` until release(), no step over several objects is applied to any
  // object of `guards`. Calls `ready` now or on the thread that ends a step, with the number to pass to
  // release().
  using Guards = std::vector<std::shared_ptr<OwnedParametersGuard>>;
  void hold(Guards guards, rpc::UniqueFunction<void(std::uint64_t)> ready);
  void release(std::uint64_t hold);

 private:
  struct Step {
    StepOptions options;
    std::size_t unseen = 0;  // how many passes StepRequest::unseen has
    std::vector<Object> objects;
  };
  using Key = std::pair<std::string, std::uint64_t>;

  struct Hold {
    Guards guards;
    rpc::UniqueFunction<void(std::uint64_t)> ready;  // empty once it has been called
  };

  void settle(const Key& key, Step step);
  static void carry_out(const Key& key, Step& step, const StepDecision& decision);
  static void fail(const Key& key, Step step);
  bool is_held(const Guards& guards) const WEFT_REQUIRES(mutex_);
  bool is_applied_to(const Guards& guards) const WEFT_REQUIRES(mutex_);

  rpc::Mutex mutex_;
  std::map<Key, Step> steps_ WEFT_GUARDED_BY(mutex_);
  // The objects of each step over several objects that is being applied.
  std::list<Guards> applying_ WEFT_GUARDED_BY(mutex_);
  std::map<std::uint64_t, Hold> holds_ WEFT_GUARDED_BY(mutex_);
  std::uint64_t last_hold_ WEFT_GUARDED_BY(mutex_) = 0;
  // Complete steps that wait for a release().
  std::vector<std::pair<Key, Step>> held_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::dist_optim
