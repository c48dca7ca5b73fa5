// New values from elsewhere (a state that is loaded): a step that no trainer made.
#include <weft/dist_optim/local/parameter_host.h>

namespace weft::dist_optim {

void ParameterHost::change(const std::function<void()>& body, const OptimizerState* optimizer) {
  std::exception_ptr failed;
  gate_.exclusive([&]() -> std::optional<Version> {
    follow_streams();
    std::lock_guard turn(optimizer_mutex_);
    if (optimizer != nullptr) this->target().set_state(*optimizer);
    StepTarget* target = nullptr;
    std::optional<ParameterVersions::Tensors> copy;
    Version version = 0;
    for (;;) {
      {
        std::lock_guard lock(mutex_);
        target = target_.get();
        const bool free = mode_ && mode_->kind == StepMode::Kind::free;
        if (free || copy || !ledger_.read_by_others({})) {
          ledger_.step({});
          version = ledger_.newest();
          break;
        }
      }
      copy = versions_.copy_newest();
    }
    try {
      if (copy) {
        if (target != nullptr) target->move_to(*copy);
        versions_.advance_to(version, std::move(*copy));
      } else {
        versions_.advance_in_place(version);
      }
      versions_.load(version);
      body();
    } catch (...) {
      failed = std::current_exception();
    }
    note_streams();
    return version;
  });
  Callbacks after;
  bool dropped = false;
  {
    std::lock_guard lock(mutex_);
    fail_outdated(after);  // steps that wait for their round, of passes that read what was there before
    dropped = tidy(after);
  }
  finish(after, dropped);
  if (failed != nullptr) std::rethrow_exception(failed);
}

}  // namespace weft::dist_optim
