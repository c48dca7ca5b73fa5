#include <weft/dist_optim/host_guard.h>

#include <weft/dist_optim/optimizer_service.h>

#include <cstdio>

namespace weft::dist_optim {
namespace {

// Has a version of the parameters loaded while a handler, or nodes of a backward, run.
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

std::string trainer_of(std::uint64_t incarnation) {
  char text[20];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(incarnation));
  return text;
}

void HostGuard::read(const std::function<void()>& body) {
  const auto reading = host_.read_newest();
  body();
}

void HostGuard::admit(const std::shared_ptr<rpc::IncomingCall>& call, rpc::Job proceed) {
  // Methods of other services that are about the object order themselves (the optimizer's, read() and
  // change()); everything that runs on the object, or fetches a part of it, reads its parameters.
  const auto* target = call->slots().find<rref::Context::Target>();
  if ((target == nullptr || !target->runs_on_it) && call->method() != rref::detail::fetch_method)
    return proceed();
  const auto* in = call->slots().find<dist_autograd::InPass>();
  if (in == nullptr) {
    call->add_context(std::make_unique<ReadingSwitch>(shared_from_this(), std::nullopt));
    return proceed();
  }
  const auto trainer = trainer_to_ask(in->pass->id());
  if (!trainer) return admit_here(call, in->pass, std::move(proceed));
  rref::Context::of(*call->core())
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

void HostGuard::ask_trainer(const rpc::AgentId& trainer) {
  std::lock_guard lock(mutex_);
  asked_.emplace(trainer.incarnation, trainer);
}

std::optional<rpc::AgentId> HostGuard::trainer_to_ask(const dist_autograd::PassId& pass) {
  std::lock_guard lock(mutex_);
  const auto found = asked_.find(pass.origin);
  if (found == asked_.end()) return std::nullopt;
  const std::string trainer = trainer_of(pass.origin);
  if (!host_.is_registered(trainer)) {
    asked_.erase(found);
    return std::nullopt;
  }
  return host_.may_wait(key_of(pass)) ? std::optional(found->second) : std::nullopt;
}

void HostGuard::admit_here(const std::shared_ptr<rpc::IncomingCall>& call,
                           const std::shared_ptr<dist_autograd::PassState>& pass, rpc::Job proceed) {
  const PassKey key = key_of(pass->id());
  pass->hooks().add_context(this, std::make_shared<ReadingSwitch>(shared_from_this(), key));
  call->add_context(std::make_unique<ReadingSwitch>(shared_from_this(), key));

  // Where the admission does not wait, the handler runs in this turn; else in a later one.
  struct Wait {
    std::mutex mutex;  // guards the rest
    bool returned = false, admitted = false;
    std::exception_ptr error;
  };
  auto wait = std::make_shared<Wait>();
  auto resume = std::make_shared<rpc::Job>(std::move(proceed));
  host_.admit(trainer_of(pass->id().origin), key, [wait, call, resume](std::exception_ptr error) {
    {
      std::lock_guard lock(wait->mutex);
      wait->admitted = true;
      wait->error = error;
      if (!wait->returned) return;
    }
    if (error != nullptr) return call->fail(error);
    call->executor().post([resume] { (*resume)(); });
  });
  // After it: a pass that has ended meanwhile gives back at once what it was just given.
  pass->on_end([guard = shared_from_this(), key] { guard->host_.release(key); });
  {
    std::lock_guard lock(wait->mutex);
    wait->returned = true;
    if (!wait->admitted) return;
  }
  if (wait->error != nullptr) return call->fail(wait->error);
  (*resume)();
}

}  // namespace weft::dist_optim
