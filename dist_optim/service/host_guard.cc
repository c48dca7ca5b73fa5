#include <weft/dist_optim/service/host_guard.h>

#include <weft/dist_autograd/autograd_layer.h>
#include <weft/dist_optim/service/optimizer_service.h>
#include <weft/rref/rref_layer.h>

#include <cstdio>

namespace weft::dist_optim {
namespace {

// Keeps a version of the parameters loaded while a handler, or nodes of a backward, run.
class ReadingSwitch final : public rpc::ContextSwitch {
 public:
  ReadingSwitch(std::shared_ptr<HostGuard> guard, std::optional<PassKey> pass)
      : guard_(std::move(guard)), pass_(pass) {}
  void enter() override { reading_ = pass_ ? guard_->host().read(*pass_) : guard_->host().read_newest(); }
  void leave() override { reading_.leave(); }

 private:
  std::shared_ptr<HostGuard> guard_;
  std::optional<PassKey> pass_;
  ParameterHost::Reading reading_;
};

}  // namespace

std::string trainer_of(std::uint64_t incarnation, const std::string& name) {
  char text[20];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(incarnation));
  return name.empty() ? text : text + ("/" + name);
}

bool is_trainer_of(const std::string& trainer, std::uint64_t incarnation) {
  return trainer.starts_with(trainer_of(incarnation));
}

void HostGuard::read(const std::function<void()>& body) {
  const auto reading = host_.read_newest();
  body();
}

void HostGuard::admit(const std::shared_ptr<rpc::IncomingCall>& call, rpc::Callback proceed) {
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
  const auto trainer = trainer_to_ask(in->pass->id());
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

void HostGuard::ask_trainer(const rpc::AgentId& agent, const std::string& trainer) {
  rpc::MutexLock lock(mutex_);
  Asked& asked = asked_[agent.incarnation];
  asked.agent = agent;
  asked.trainers.insert(trainer);
}

std::optional<rpc::AgentId> HostGuard::trainer_to_ask(const dist_autograd::PassId& pass) {
  rpc::MutexLock lock(mutex_);
  const auto found = asked_.find(pass.origin);
  if (found == asked_.end()) return std::nullopt;
  std::erase_if(found->second.trainers, [&](const auto& trainer) { return !host_.is_registered(trainer); });
  if (found->second.trainers.empty()) {
    asked_.erase(found);
    return std::nullopt;
  }
  return host_.status(key_of(pass)).may_wait ? std::optional(found->second.agent) : std::nullopt;
}

void HostGuard::admit_here(const std::shared_ptr<rpc::IncomingCall>& call,
                           const std::shared_ptr<dist_autograd::PassState>& pass, rpc::Callback proceed) {
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
  const std::string trainer = host_.status(key).trainer.value_or(trainer_of(pass->id().origin));
  host_.admit(trainer, key, [wait, call, resume](std::exception_ptr error) {
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
  pass->on_end([guard = shared_from_this(), key] { guard->host_.release(key); });
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
