// LocalSteps: the steps under way whose objects all live with this owner. It decides them itself when all
// their objects are prepared, so that such a step costs the trainer one round trip.
//
// Owner: the agent's dist_optim::Context. Thread-safe; promises complete and hosts are called outside the
// mutex.
#pragma once

#include <weft/dist_optim/host_guard.h>
#include <weft/dist_optim/step_messages.h>

#include <map>
#include <mutex>

namespace weft::dist_optim {

class WEFT_EXPORT LocalSteps {
 public:
  struct Object {
    std::shared_ptr<HostGuard> guard;  // may be null where the part was refused
    rpc::Result<StepPart> part;
    std::shared_ptr<rpc::Promise<StepOutcome>> promise;
  };

  // One of `objects` objects has its part prepared, or has refused it. Its promise completes when all have
  // come: with the refusal for an object that refused, else with what was decided.
  void arrive(const std::string& trainer, const StepRequest& request, std::size_t objects, Object object);
  // The trainer has given a step up, or is gone; harmless for one that is decided or unknown.
  void abort(const std::string& trainer, std::uint64_t number);

 private:
  struct Step {
    StepOptions options;
    std::size_t unseen = 0;  // of its passes
    std::vector<Object> objects;
  };
  using Key = std::pair<std::string, std::uint64_t>;

  static void settle(const Key& key, Step step);
  static void fail(const Key& key, Step step);

  std::mutex mutex_;  // guards steps_
  std::map<Key, Step> steps_;
};

}  // namespace weft::dist_optim
