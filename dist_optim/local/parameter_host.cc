#include <weft/dist_optim/local/parameter_host.h>
#include <weft/dist_optim/local/shadow_leaves.h>
#include <weft/rpc/core/error.h>

#include <algorithm>
#include <utility>

namespace weft::dist_optim {
namespace {

std::exception_ptr error(rpc::ErrorKind kind, const std::string& message) {
  return std::make_exception_ptr(rpc::Error(kind, message));
}

}  // namespace

double HostStats::mean_staleness() const {
  double sum = 0, steps = 0;
  for (auto [age, count] : staleness) {
    sum += static_cast<double>(age) * static_cast<double>(count);
    steps += static_cast<double>(count);
  }
  return steps == 0 ? 0 : sum / steps;
}

ParameterHost::ParameterHost(std::vector<Parameter> parameters)
    : parameters_((check_parameters(parameters), std::move(parameters))),
      versions_(parameters_),
      gate_(0, [this](Version version) { versions_.load(version); }) {
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    index_[parameters_[i].tensor.unsafeGetTensorImpl()] = i;
}

ParameterHost::~ParameterHost() = default;

// ---- trainers

void ParameterHost::register_trainer(const std::string& trainer, const OptimizerSpec& spec, StepMode mode) {
  check(mode);
  std::lock_guard lock(mutex_);
  auto conflict = [&](const std::string& theirs, const std::string& ours) {
    throw rpc::Error(rpc::ErrorKind::invalid_argument, "trainer " + trainer + " asks for " + theirs +
                                                           ", but these parameters are stepped by " + ours);
  };
  if (leaves_ && !(leaves_->spec() == spec)) conflict(to_string(spec), to_string(leaves_->spec()));
  if (mode_ && !(*mode_ == mode)) conflict("mode " + to_string(mode), "mode " + to_string(*mode_));
  if (!leaves_) {
    leaves_ = std::make_unique<ShadowLeaves>(parameters_, spec);
    mode_ = mode;
    ledger_.set_mode(mode);
    if (mode.kind == StepMode::Kind::synchronous) round_.emplace(static_cast<std::size_t>(mode.count));
  }
  if (round_) round_->join(trainer);
  ledger_.add_trainer(trainer);
  ++handles_[trainer];
}

void ParameterHost::unregister_trainer(const std::string& trainer, bool died) {
  Callbacks after;
  bool dropped = false;
  {
    std::lock_guard lock(mutex_);
    auto handle = handles_.find(trainer);
    if (handle == handles_.end()) return;
    if (--handle->second > 0 && !died) return;
    handles_.erase(handle);
    auto ended = error(rpc::ErrorKind::aborted, "trainer " + trainer + (died ? " died" : " has left"));
    for (PassKey pass : ledger_.remove_trainer(trainer)) admitted(pass, ended, after);
    if (round_ && died) {
      fail_pending(round_->die(trainer), error(rpc::ErrorKind::aborted, StepRound::describe_death(trainer)),
                   after);
    } else if (round_) {
      round_->leave(trainer);
    }
    dropped = tidy(after);
  }
  finish(after, dropped);
  close_rounds();
}

// ---- passes

void ParameterHost::admit(const std::string& trainer, PassKey pass, Admitted done) {
  std::exception_ptr refused;
  {
    std::lock_guard lock(mutex_);
    try {
      bool free = mode_ && mode_->kind == StepMode::Kind::free;
      if (!free && ledger_.admit(trainer, pass) == PassLedger::Admission::waiting) {
        waiting_[pass].push_back(std::move(done));
        return;
      }
    } catch (...) {
      refused = std::current_exception();
    }
  }
  done(refused);
}

void ParameterHost::release(PassKey pass) {
  Callbacks after;
  bool dropped = false;
  {
    std::lock_guard lock(mutex_);
    if (ledger_.release(pass)) {
      admitted(pass, error(rpc::ErrorKind::cancelled, "pass " + to_string(pass) + " was released"), after);
    }
    dropped = tidy(after);
  }
  finish(after, dropped);
}

ParameterHost::Reading ParameterHost::read(PassKey pass) {
  Reading reading;
  {
    std::lock_guard lock(mutex_);
    if (mode_ && mode_->kind == StepMode::Kind::free) return reading;
    reading.retained_ = ledger_.pin(pass);
    if (!reading.retained_) {
      throw rpc::Error(
          rpc::ErrorKind::failed_precondition,
          "pass " + to_string(pass) + " may not read: it was not admitted, or has stepped or been released");
    }
    ledger_.retain(*reading.retained_);
  }
  try {
    gate_.enter(*reading.retained_);
  } catch (...) {
    std::lock_guard lock(mutex_);
    ledger_.let_go(*reading.retained_);
    throw;
  }
  reading.host_ = this;
  return reading;
}

ParameterHost::Reading ParameterHost::read_newest() {
  Reading reading;
  gate_.enter_newest();
  reading.host_ = this;
  return reading;
}

ParameterHost::Reading& ParameterHost::Reading::operator=(Reading&& other) noexcept {
  if (this == &other) return *this;
  leave();
  host_ = std::exchange(other.host_, nullptr);
  retained_ = std::exchange(other.retained_, std::nullopt);
  return *this;
}

void ParameterHost::Reading::leave() {
  ParameterHost* host = std::exchange(host_, nullptr);
  if (host == nullptr) return;
  host->gate_.leave();
  Callbacks after;
  bool dropped = false;
  if (retained_) {
    std::lock_guard lock(host->mutex_);
    host->ledger_.let_go(*retained_);
    dropped = host->tidy(after);
  }
  host->finish(after, dropped);
}

// ---- steps

void ParameterHost::step(const std::string& trainer, std::vector<PassGradients> passes, Stepped done) {
  Applied applied;
  try {
    PendingStep step{{}, sum_gradients(trainer, passes), {}};
    bool synchronous = false;
    {
      std::lock_guard lock(mutex_);
      step.passes = passes_to_step(passes);
      synchronous = round_.has_value();
    }
    passes.clear();
    if (synchronous) {
      step.done = done;
      arrive(trainer, std::move(step));
      close_rounds();
      return;
    }
    applied = apply({{trainer, step.passes}}, step.gradients);
  } catch (...) {
    applied.error = std::current_exception();
  }
  done(applied.error, applied.version);
}

Gradients ParameterHost::sum_gradients(const std::string& trainer,
                                       const std::vector<PassGradients>& passes) const {
  {
    std::lock_guard lock(mutex_);
    if (!handles_.contains(trainer)) {
      throw rpc::Error(rpc::ErrorKind::failed_precondition,
                       "trainer " + trainer + " has no optimizer on these parameters");
    }
  }
  {
    std::lock_guard turn(optimizer_mutex_);
    for (const PassGradients& pass : passes) leaves().check(pass.gradients);
  }
  Gradients sum;
  for (const PassGradients& pass : passes) add_gradients(sum, pass.gradients);
  return sum;
}

// A pass that did not use these parameters need not have read them; one that brings gradients must.
std::vector<PassKey> ParameterHost::passes_to_step(const std::vector<PassGradients>& passes) const {
  std::vector<PassKey> keys;
  for (const PassGradients& pass : passes) {
    bool used = std::any_of(pass.gradients.begin(), pass.gradients.end(),
                            [](const auto& gradient) { return gradient.second.defined(); });
    if (used || ledger_.pin(pass.pass)) keys.push_back(pass.pass);
  }
  return keys;
}

void ParameterHost::arrive(const std::string& trainer, PendingStep step) {
  std::lock_guard lock(mutex_);
  ledger_.check_step(trainer, step.passes);
  round_->arrive(trainer);
  ledger_.hold(trainer);
  pending_[trainer] = std::move(step);
}

// Applies the round if it is complete, and the next one if that is. One thread at a time does this; what
// becomes complete meanwhile is seen by it.
void ParameterHost::close_rounds() {
  for (;;) {
    std::map<std::string, PendingStep> closing;
    PassLedger::PassesOfTrainers passes;
    {
      std::lock_guard lock(mutex_);
      if (!round_ || !round_->complete()) return;
      round_->close();
      closing = std::exchange(pending_, {});
      for (const auto& [trainer, step] : closing) passes[trainer] = step.passes;
    }
    Applied applied;
    try {
      Gradients sum;
      for (const auto& [trainer, step] : closing) add_gradients(sum, step.gradients);
      applied = apply(passes, sum);
    } catch (...) {
      applied.error = std::current_exception();
    }
    Callbacks after;
    bool dropped = false;
    {
      std::lock_guard lock(mutex_);
      for (auto& [trainer, step] : closing) {
        round_->finish(trainer);
        ledger_.end_hold(trainer);
        after.push_back([done = std::move(step.done), applied] { done(applied.error, applied.version); });
      }
      fail_outdated(after);
      dropped = tidy(after);
    }
    finish(after, dropped);
  }
}

ParameterHost::Applied ParameterHost::apply(const PassLedger::PassesOfTrainers& passes,
                                            const Gradients& gradients) {
  Applied applied;
  if (gradients.empty()) {
    std::lock_guard lock(mutex_);
    for (const auto& [trainer, keys] : passes) ledger_.end_without_step(trainer, keys);
    applied.version = ledger_.newest();
  } else {
    gate_.exclusive([&] {
      std::lock_guard turn(optimizer_mutex_);
      return apply_alone(passes, gradients, applied);
    });
  }
  Callbacks after;
  bool dropped = false;
  {
    std::lock_guard lock(mutex_);
    dropped = tidy(after);
  }
  finish(after, dropped);
  return applied;
}

std::optional<ParameterHost::Version> ParameterHost::apply_alone(const PassLedger::PassesOfTrainers& passes,
                                                                 const Gradients& gradients,
                                                                 Applied& applied) {
  leaves().check(gradients);
  std::optional<ParameterVersions::Tensors> copy;
  for (;;) {
    {
      std::lock_guard lock(mutex_);
      bool free = mode_->kind == StepMode::Kind::free;
      std::uint64_t staleness = 0;
      if (mode_->kind == StepMode::Kind::stale) {
        for (const auto& [trainer, keys] : passes) staleness = ledger_.check_step(trainer, keys);
      }
      if (free || copy || !ledger_.read_by_others(passes)) {
        // From here on new passes pin the version that is about to be made; they wait at the gate until it
        // is.
        ledger_.step(passes);
        applied.version = ledger_.newest();
        if (!free) ++staleness_[staleness];
        break;
      }
    }
    // Not under the lock, and before anything has changed: a copy may take long, and memory may be short.
    copy = versions_.copy_newest();
  }
  try {
    if (copy) {
      leaves().move_to(*copy);
      versions_.advance_to(applied.version, std::move(*copy));
    } else {
      versions_.advance_in_place(applied.version);
    }
    leaves().step(gradients);
  } catch (...) {
    applied.error = std::current_exception();
  }
  versions_.load(applied.version);
  return applied.version;
}

// ---- the rest, under mutex_ unless said otherwise

// A trainer that joined and stepped while the round before was being applied: its passes are too old now.
void ParameterHost::fail_outdated(Callbacks& after) {
  std::vector<std::pair<std::string, std::exception_ptr>> outdated;
  for (const auto& [trainer, step] : pending_) {
    std::vector<PassKey> open = step.passes;  // one that was released since does no harm
    std::erase_if(open, [&](PassKey pass) { return !ledger_.pin(pass); });
    try {
      ledger_.check_step(trainer, open);
    } catch (...) {
      outdated.emplace_back(trainer, std::current_exception());
    }
  }
  for (const auto& [trainer, why] : outdated) fail_pending({trainer}, why, after);
}

void ParameterHost::fail_pending(const std::vector<std::string>& trainers, const std::exception_ptr& error,
                                 Callbacks& after) {
  for (const std::string& trainer : trainers) {
    auto found = pending_.find(trainer);
    if (found == pending_.end()) continue;
    after.push_back([done = std::move(found->second.done), error] { done(error, 0); });
    pending_.erase(found);
    round_->finish(trainer);
    ledger_.end_hold(trainer);
  }
}

void ParameterHost::admitted(PassKey pass, const std::exception_ptr& error, Callbacks& after) {
  auto found = waiting_.find(pass);
  if (found == waiting_.end()) return;
  for (Admitted& done : found->second) after.push_back([done = std::move(done), error] { done(error); });
  waiting_.erase(found);
}

// After whatever ended a pin, a hold or a reader. True if a version was dropped.
bool ParameterHost::tidy(Callbacks& after) {
  for (PassKey pass : ledger_.admit_waiting()) admitted(pass, nullptr, after);
  bool dropped = false;
  for (Version version : ledger_.take_dropped()) {
    versions_.drop(version);
    dropped = true;
  }
  return dropped;
}

// Not under the lock.
void ParameterHost::finish(Callbacks& after, bool dropped) {
  if (dropped) gate_.settle();
  for (auto& callback : after) callback();
}

ShadowLeaves& ParameterHost::leaves() const {
  std::lock_guard lock(mutex_);
  if (!leaves_) {
    throw rpc::Error(rpc::ErrorKind::failed_precondition,
                     "no trainer has registered an optimizer on these parameters");
  }
  return *leaves_;
}

double ParameterHost::learning_rate() const {
  std::lock_guard turn(optimizer_mutex_);
  return leaves().learning_rate();
}

void ParameterHost::set_learning_rate(double rate) {
  std::lock_guard turn(optimizer_mutex_);
  leaves().set_learning_rate(rate);
}

std::string ParameterHost::save_state() const {
  std::lock_guard turn(optimizer_mutex_);
  return leaves().save_state();
}

void ParameterHost::load_state(const std::string& bytes) {
  std::lock_guard turn(optimizer_mutex_);
  leaves().load_state(bytes);
}

std::optional<std::size_t> ParameterHost::index_of(const at::Tensor& parameter) const {
  auto found = index_.find(parameter.unsafeGetTensorImpl());
  if (found == index_.end()) return std::nullopt;
  return found->second;
}

HostStats ParameterHost::stats() const {
  HostStats stats;
  {
    std::lock_guard lock(mutex_);
    stats.version = ledger_.newest();
    stats.staleness = staleness_;
    stats.open_passes = ledger_.open();
    stats.waiting_passes = ledger_.waiting();
  }
  stats.live_versions = versions_.live();
  stats.copied_bytes = versions_.copied_bytes();
  stats.version_loads = gate_.loads();
  return stats;
}

}  // namespace weft::dist_optim
