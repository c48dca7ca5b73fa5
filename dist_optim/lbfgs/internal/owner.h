// LbfgsOwner: the L-BFGS state of one object, on the object's owner. It has the vectors, and the identity of
// the DistLBFGS that steps the object (the holder).
//
// One DistLBFGS at a time holds an object, and nothing else steps the object meanwhile
// (OwnedParameters::claim). If the holder detaches, or if its agent leaves or dies, the vectors are freed and
// a step in flight is undone.
//
// Owner: the object's OwnedParametersGuard, which creates it in part(). Thread-safety: full; the mutex is
// locked while parameters are read and changed.
#pragma once

#include <weft/dist_optim/lbfgs/internal/vectors.h>
#include <weft/rpc/core/mutex.h>

#include <optional>
#include <string>

namespace weft::dist_optim {

class WEFT_EXPORT LbfgsOwner {
 public:
  // The identity of a DistLBFGS at the owners: its agent, and the number of the DistLBFGS on that agent.
  struct Holder {
    std::string trainer;
    std::uint64_t number = 0;
    std::string name;  // the agent's name, for messages
    friend bool operator==(const Holder&, const Holder&) = default;
  };

  // owned: the OwnedParameters of the same object. It outlives this object.
  explicit LbfgsOwner(OwnedParameters& owned) : owned_(owned) {}

  // Makes `holder` the holder, and creates the vectors. `failed_precondition` if another optimizer steps
  // these parameters. `invalid_argument` if LbfgsVectors refuses the parameters or the history size.
  void attach(const Holder& holder, std::size_t history_size);
  void detach(const Holder& holder);  // no effect if `holder` is not the holder
  // The agent `trainer` has left or died. No effect if the holder is on another agent.
  void trainer_gone(const std::string& trainer);

  // Returns use(vectors). `failed_precondition` if `holder` is not the holder.
  template <class Use>
  auto with(const Holder& holder, Use use) {
    rpc::MutexLock lock(mutex_);
    check_holder(holder);
    return use(*vectors_);
  }

 private:
  void check_holder(const Holder& holder) const WEFT_REQUIRES(mutex_);
  void end() WEFT_REQUIRES(mutex_);

  OwnedParameters& owned_;
  rpc::Mutex mutex_;
  Holder holder_ WEFT_GUARDED_BY(mutex_);
  std::optional<LbfgsVectors> vectors_ WEFT_GUARDED_BY(mutex_);  // empty: there is no holder
};

}  // namespace weft::dist_optim
