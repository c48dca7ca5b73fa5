#include <weft/dist_optim/service/internal/local_steps.h>

#include <algorithm>

namespace weft::dist_optim {

void LocalSteps::arrive(const std::string& trainer, const StepRequest& request, std::size_t objects,
                        Object object) {
  const Key key{trainer, request.number};
  Step complete;
  {
    rpc::MutexLock lock(mutex_);
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
    rpc::MutexLock lock(mutex_);
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
  if (decision.action == StepDecision::Action::give_up || step.objects.size() == 1)
    return carry_out(key, step, decision);
  Guards guards;
  for (const Object& object : step.objects) guards.push_back(object.guard);
  std::list<Guards>::iterator applying;
  {
    rpc::MutexLock lock(mutex_);
    if (is_held(guards)) {
      held_.emplace_back(key, std::move(step));
      return;
    }
    applying = applying_.insert(applying_.end(), std::move(guards));
  }
  carry_out(key, step, decision);
  std::vector<std::pair<std::uint64_t, rpc::UniqueFunction<void(std::uint64_t)>>> ready;
  {
    rpc::MutexLock lock(mutex_);
    applying_.erase(applying);
    for (auto& [number, hold] : holds_)
      if (hold.ready && !is_applied_to(hold.guards))
        ready.emplace_back(number, std::exchange(hold.ready, nullptr));
  }
  for (auto& [number, job] : ready) job(number);
}

bool LocalSteps::is_held(const Guards& guards) const {
  return std::any_of(holds_.begin(), holds_.end(), [&](const auto& entry) {
    return std::find_first_of(guards.begin(), guards.end(), entry.second.guards.begin(),
                              entry.second.guards.end()) != guards.end();
  });
}

bool LocalSteps::is_applied_to(const Guards& guards) const {
  return std::any_of(applying_.begin(), applying_.end(), [&](const Guards& of_step) {
    return std::find_first_of(guards.begin(), guards.end(), of_step.begin(), of_step.end()) != guards.end();
  });
}

void LocalSteps::hold(Guards guards, rpc::UniqueFunction<void(std::uint64_t)> ready) {
  std::uint64_t number = 0;
  {
    rpc::MutexLock lock(mutex_);
    number = ++last_hold_;
    const bool wait = is_applied_to(guards);
    Hold& hold = holds_[number];
    hold.guards = std::move(guards);
    if (wait) {
      hold.ready = std::move(ready);
      return;
    }
  }
  ready(number);
}

void LocalSteps::release(std::uint64_t hold) {
  std::vector<std::pair<Key, Step>> held;
  {
    rpc::MutexLock lock(mutex_);
    holds_.erase(hold);
    held = std::exchange(held_, {});
  }
  for (auto& [key, step] : held) settle(key, std::move(step));  // or hold it again
}

void LocalSteps::carry_out(const Key& key, Step& step, const StepDecision& decision) {
  for (Object& object : step.objects) {
    if (!object.part.ok()) {
      object.promise->fail(object.part.error());
    } else if (decision.action == StepDecision::Action::give_up) {
      object.guard->owned().abort(key.first, key.second);
      object.promise->complete(StepOutcome{decision, 0});
    } else {
      const auto done = [promise = object.promise, guard = object.guard, decision](
                            std::exception_ptr error, OwnedParameters::Version version) {
        if (error != nullptr) return promise->fail(error);
        promise->complete(StepOutcome{decision, version});
      };
      try {
        object.guard->owned().commit(key.first, key.second, decision, done);
      } catch (...) {  // the trainer has left meanwhile; `done` was not called
        object.promise->fail(std::current_exception());
      }
    }
  }
}

void LocalSteps::fail(const Key& key, Step step) {
  for (Object& object : step.objects) {
    if (object.part.ok()) object.guard->owned().abort(key.first, key.second);
    object.promise->fail(rpc::Error(rpc::ErrorKind::aborted, "the step was aborted: nothing has stepped"));
  }
}

}  // namespace weft::dist_optim
