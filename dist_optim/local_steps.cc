#include <weft/dist_optim/local_steps.h>

#include <algorithm>

namespace weft::dist_optim {

void LocalSteps::arrive(const std::string& trainer, const StepRequest& request, std::size_t objects,
                        Object object) {
  const Key key{trainer, request.number};
  Step complete;
  {
    std::lock_guard lock(mutex_);
    Step& step = steps_[key];
    step.options = request.options;
    step.unseen = request.unseen.size();
    step.objects.push_back(std::move(object));
    if (step.objects.size() < objects) return;
    complete = std::move(step);
    steps_.erase(key);
  }
  settle(key, std::move(complete));
}

void LocalSteps::abort(const std::string& trainer, std::uint64_t number) {
  const Key key{trainer, number};
  Step step;
  {
    std::lock_guard lock(mutex_);
    auto found = steps_.find(key);
    if (found == steps_.end()) return;
    step = std::move(found->second);
    steps_.erase(found);
  }
  fail(key, std::move(step));
}

void LocalSteps::settle(const Key& key, Step step) {
  StepDecision decision;
  std::vector<StepPart> parts;
  for (Object& object : step.objects)
    if (object.part.ok()) parts.push_back(object.part.value());
  if (parts.size() < step.objects.size()) {
    decision.action = StepDecision::Action::give_up;
  } else {
    decision = decide(parts, step.options, step.unseen);
  }
  for (Object& object : step.objects) {
    if (!object.part.ok()) {
      object.promise->fail(object.part.error());
    } else if (decision.action == StepDecision::Action::give_up) {
      object.guard->host().abort(key.first, key.second);
      object.promise->complete(StepOutcome{decision, 0});
    } else {
      const auto done = [promise = object.promise, guard = object.guard, decision](
                            std::exception_ptr error, ParameterHost::Version version) {
        if (error != nullptr) return promise->fail(error);
        promise->complete(StepOutcome{decision, version});
      };
      try {
        object.guard->host().commit(key.first, key.second, decision, done);
      } catch (...) {  // the trainer has left meanwhile; `done` was not called
        object.promise->fail(std::current_exception());
      }
    }
  }
}

void LocalSteps::fail(const Key& key, Step step) {
  for (Object& object : step.objects) {
    if (object.part.ok()) object.guard->host().abort(key.first, key.second);
    object.promise->fail(rpc::Error(rpc::ErrorKind::aborted, "the step was given up: nothing has stepped"));
  }
}

}  // namespace weft::dist_optim
