#include <weft/dist_optim/service/internal/owned_parameters_guard.h>

#include <weft/dist_autograd/internal/autograd_layer.h>
#include <weft/dist_optim/service/internal/optimizer_service.h>
#include <weft/rpc/endpoint/sessions.h>
#include <weft/rref/rref_layer.h>

#include <cstdio>

namespace weft::dist_optim {
namespace {

// Keeps a version of the parameters loaded while a handler, or nodes of a backward, run.
class ReadingSwitch final : public rpc::ContextSwitch {
 public:
  ReadingSwitch(std::shared_ptr<OwnedParametersGuard> guard, std::optional<PassKey> pass)
      : guard_(std::move(guard)), pass_(pass) {}
  void enter() override { reading_ = pass_ ? guard_->owned().read(*pass_) : guard_->owned().read_newest(); }
  void leave() override { reading_.leave(); }

 private:
  std::shared_ptr<OwnedParametersGuard> guard_;
  std::optional<PassKey> pass_;
  OwnedParameters::Reading reading_;
};

}  // namespace

// With the length of the agent's name, so that the id of one agent is never the beginning of another one.
std::string trainer_of(const rpc::AgentId& agent, const std::string& name) {
  char incarnation[20];
  std::snprintf(incarnation, sizeof incarnation, "%016llx",
                static_cast<unsigned long long>(agent.incarnation));
  const std::string id = incarnation + (" " + std::to_string(agent.name.size())) + " " + agent.name;
  return name.empty() ? id : id + "/" + name;
}

bool is_trainer_of(const std::string& trainer, const rpc::AgentId& agent) {
  return trainer.starts_with(trainer_of(agent));
}

rpc::AgentId origin_of(const dist_autograd::PassId& pass, const rpc::CallHost& host) {
  const auto& core = static_cast<const rpc::AgentCore&>(host);  // the only CallHost of calls
  return core.sessions().agent_of(pass.origin).value_or(rpc::AgentId{{}, pass.origin});
}

void OwnedParametersGuard::read(const std::function<void()>& body) {
  const auto reading = owned_.read_newest();
  body();
}

void OwnedParametersGuard::admit(const std::shared_ptr<rpc::IncomingCall>& call, rpc::Callback proceed) {
  // Methods of other services that concern the object need no admission here: the optimizer's methods have
  // their own order, and other methods call read() or change(). All calls that run on the object, or fetch a
  // part of it, read its parameters.
  const auto* target = call->slots().find<rref::RRefLayer::Target>();
  if ((target == nullptr || !target->runs_on_it) && call->method() != rref::detail::fetch_method)
    return proceed();
  const auto* in = call->slots().find<dist_autograd::InPass>();
  if (in == nullptr) {
    call->add_context(std::make_unique<ReadingSwitch>(shared_from_this(), std::nullopt));
    return proceed();
  }
  const auto trainer = trainer_to_ask(origin_of(in->pass->id(), *call->host()), in->pass->id());
  if (!trainer) return admit_here(call, in->pass, std::move(proceed));
  rref::RRefLayer::of(*call->host())
      ->peer(*trainer)
      .call<&OptimizerService::admit_everywhere>(in->pass->id(), number_)
      .then([self = shared_from_this(), call, pass = in->pass,
             proceed = std::move(proceed)](rpc::Result<void>&& admitted) mutable {
        if (!admitted.ok()) return call->fail(admitted.error());
        call->executor().post([self, call, pass, proceed = std::move(proceed)]() mutable {
          self->admit_here(call, pass, std::move(proceed));
        });
      });
}

void OwnedParametersGuard::ask_trainer(const rpc::AgentId& agent, const std::string& trainer) {
  rpc::MutexLock lock(mutex_);
  asked_[agent].insert(trainer);
}

std::optional<rpc::AgentId> OwnedParametersGuard::trainer_to_ask(const rpc::AgentId& origin,
                                                                 const dist_autograd::PassId& pass) {
  rpc::MutexLock lock(mutex_);
  const auto found = asked_.find(origin);
  if (found == asked_.end()) return std::nullopt;
  std::erase_if(found->second, [&](const auto& trainer) { return !owned_.is_registered(trainer); });
  if (found->second.empty()) {
    asked_.erase(found);
    return std::nullopt;
  }
  return owned_.status(key_of(pass)).may_wait ? std::optional(origin) : std::nullopt;
}

void OwnedParametersGuard::admit_here(const std::shared_ptr<rpc::IncomingCall>& call,
                                      const std::shared_ptr<dist_autograd::PassState>& pass,
                                      rpc::Callback proceed) {
  const PassKey key = key_of(pass->id());
  pass->hooks().add_context(this, std::make_shared<ReadingSwitch>(shared_from_this(), key));
  call->add_context(std::make_unique<ReadingSwitch>(shared_from_this(), key));

  // If the admission does not wait, the handler runs in this turn; otherwise in a later one.
  struct Wait {
    rpc::Mutex mutex;
    bool returned WEFT_GUARDED_BY(mutex) = false;
    bool admitted WEFT_GUARDED_BY(mutex) = false;
    std::exception_ptr error WEFT_GUARDED_BY(mutex);
  };
  auto wait = std::make_shared<Wait>();
  auto resume = std::make_shared<rpc::Callback>(std::move(proceed));
  const std::string trainer =
      owned_.status(key).trainer.value_or(trainer_of(origin_of(pass->id(), *call->host())));
  owned_.admit(trainer, key, [wait, call, resume](std::exception_ptr error) {
    {
      rpc::MutexLock lock(wait->mutex);
      wait->admitted = true;
      wait->error = error;
      if (!wait->returned) return;
    }
    if (error != nullptr) return call->fail(error);
    call->executor().post([resume] { (*resume)(); });
  });
  // After the admission, because on_end() runs the job at once if the pass has ended meanwhile.
  pass->on_end([guard = shared_from_this(), key] { guard->owned_.release(key); });
  std::exception_ptr refused;
  {
    rpc::MutexLock lock(wait->mutex);
    wait->returned = true;
    if (!wait->admitted) return;
    refused = wait->error;
  }
  if (refused != nullptr) return call->fail(refused);
  (*resume)();
}

}  // namespace weft::dist_optim
