// LbfgsHost: one object's L-BFGS on its owner: its holder, and its vectors.
//
// One DistLBFGS at a time uses an object, and nothing else steps it meanwhile (ParameterHost::claim). When it
// leaves or its agent dies, the vectors are freed, and a step in flight is undone.
//
// Owner: the object's HostGuard, as a part (HostGuard::part). Thread-safety: full; its mutex is locked while
// parameters are read and changed.
#pragma once

#include <weft/dist_optim/lbfgs/vectors.h>
#include <weft/rpc/core/mutex.h>

#include <optional>
#include <string>

namespace weft::dist_optim {

class WEFT_EXPORT LbfgsHost {
 public:
  // The identity of a DistLBFGS at the owners: its agent, and its number on that agent.
  struct Holder {
    std::string trainer;
    std::uint64_t number = 0;
    std::string name;  // of the agent, for messages
    friend bool operator==(const Holder&, const Holder&) = default;
  };

  // host: of the same object; outlives this.
  explicit LbfgsHost(ParameterHost& host) : host_(host) {}

  // `failed_precondition` if another optimizer steps these parameters, `invalid_argument` as LbfgsVectors.
  void attach(const Holder& holder, std::size_t history_size);
  void detach(const Holder& holder);  // no effect if it does not have the object
  void trainer_gone(const std::string& trainer);

  // Runs use(vectors). `failed_precondition` if the holder does not have the object.
  template <class Use>
  auto with(const Holder& holder, Use use) {
    rpc::MutexLock lock(mutex_);
    check_holder(holder);
    return use(*vectors_);
  }

 private:
  void check_holder(const Holder& holder) const WEFT_REQUIRES(mutex_);
  void end() WEFT_REQUIRES(mutex_);

  ParameterHost& host_;
  rpc::Mutex mutex_;
  Holder holder_ WEFT_GUARDED_BY(mutex_);
  std::optional<LbfgsVectors> vectors_ WEFT_GUARDED_BY(mutex_);  // while it has a holder
};

}  // namespace weft::dist_optim
