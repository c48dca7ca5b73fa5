#include <weft/dist_optim/local/owned_parameters.h>
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

double OwnerStats::mean_staleness() const {
  double sum = 0, steps = 0;
  for (auto [age, count] : staleness) {
    sum += static_cast<double>(age) * static_cast<double>(count);
    steps += static_cast<double>(count);
  }
  return steps == 0 ? 0 : sum / steps;
}

OwnedParameters::OwnedParameters(std::vector<Parameter> parameters)
    : has_tensors_(true),
      parameters_((check_parameters(parameters), std::move(parameters))),
      make_target_([this](const OptimizerSpec& spec) -> std::unique_ptr<StepTarget> {
        return std::make_unique<ShadowLeaves>(parameters_, spec);
      }),
      versions_(parameters_),
      gate_(0, [this](Version version) { versions_.load(version); }) {}

OwnedParameters::OwnedParameters(MakeTarget make)
    : has_tensors_(false),
      make_target_(std::move(make)),
      versions_(parameters_),
      gate_(0, [this](Version version) { versions_.load(version); }) {}

OwnedParameters::~OwnedParameters() = default;

// ---- trainers

bool OwnedParameters::in_flight() const {
  return !pending_.empty() || !prepared_.empty() || (round_ && round_->in_flight());
}

void OwnedParameters::adopt_passes(const std::string& before, const std::string& trainer) {
  rpc::MutexLock lock(mutex_);
  ledger_.adopt_passes(before, trainer);
  for (auto& [pass, owner] : committed_)
    if (owner == before) owner = trainer;
}

bool OwnedParameters::is_registered(const std::string& trainer) const {
  rpc::MutexLock lock(mutex_);
  return handles_.contains(trainer);
}

std::vector<std::string> OwnedParameters::trainers() const {
  rpc::MutexLock lock(mutex_);
  std::vector<std::string> all;
  for (const auto& [trainer, handles] : handles_) all.push_back(trainer);
  return all;
}

bool OwnedParameters::is_stepped() const {
  rpc::MutexLock lock(mutex_);
  return !handles_.empty() || in_flight();
}

void OwnedParameters::register_trainer(const std::string& trainer, const OptimizerSpec& spec, StepMode mode,
                                       const std::string& name) {
  check(mode);
  std::unique_lock<std::mutex> turn;
  rpc::MutexLock lock(mutex_);
  if (optimizer_.exists() && handles_.empty() && !optimizer_.is(spec)) {  // to be replaced
    lock.unlock();
    turn = optimizer_.turn();
    lock.lock();
  }
  const std::string& shown = name.empty() ? trainer : name;
  auto conflict = [&](const std::string& theirs, const std::string& ours) {
    throw rpc::Error(rpc::ErrorKind::invalid_argument, "trainer " + shown + " asks for " + theirs +
                                                           ", but these parameters are stepped by " + ours);
  };
  if (claimed_)
    throw rpc::Error(rpc::ErrorKind::failed_precondition,
                     "trainer " + *claimed_ + " has claimed these parameters");
  if (ledger_.paused())
    throw rpc::Error(rpc::ErrorKind::failed_precondition,
                     "trainer " + shown +
                         " cannot attach its optimizer: a restore of the parameters is in flight; try again");
  if (handles_.empty()) {
    if (in_flight())
      throw rpc::Error(rpc::ErrorKind::failed_precondition,
                       "trainer " + shown +
                           " cannot attach its optimizer: the last step of the trainers before is in flight; "
                           "try again");
    if (!optimizer_.exists() || (turn.owns_lock() && !optimizer_.is(spec))) {
      auto fresh = make_target_(spec);
      fresh->move_to(*versions_.newest());
      optimizer_.replace(std::move(fresh));
    }
    mode_ = mode;
    ledger_.set_mode(mode);
    round_.reset();
    if (mode.kind == StepMode::Kind::synchronous) round_.emplace(static_cast<std::size_t>(mode.count));
  }
  if (!optimizer_.is(spec)) conflict(to_string(spec), to_string(optimizer_.spec()));
  if (!(*mode_ == mode)) conflict("mode " + to_string(mode), "mode " + to_string(*mode_));
  if (round_) round_->join(trainer, name);
  ledger_.add_trainer(trainer, name);
  ++handles_[trainer];
}

void OwnedParameters::set_mode(StepMode mode) {
  check(mode);
  rpc::MutexLock lock(mutex_);
  const auto refuse = [&](const std::string& why) {
    throw rpc::Error(rpc::ErrorKind::failed_precondition,
                     "the mode cannot change to " + to_string(mode) + ": " + why);
  };
  if (!round_ || mode.kind != StepMode::Kind::synchronous)
    refuse("it is " + (mode_ ? to_string(*mode_) : "not set") +
           "; only synchronous modes change while trainers are attached: destroy all handles first");
  if (in_flight()) refuse("a step is in flight; try again between rounds");
  if (mode.count > 0 && static_cast<std::size_t>(mode.count) < handles_.size())
    throw rpc::Error(rpc::ErrorKind::invalid_argument,
                     to_string(mode) + ": " + std::to_string(handles_.size()) + " trainers are attached");
  mode_ = mode;
  ledger_.set_mode(mode);
  round_.emplace(static_cast<std::size_t>(mode.count));
  for (const auto& [trainer, handles] : handles_) round_->join(trainer, ledger_.name_of(trainer));
}

void OwnedParameters::claim(const std::string& name) {
  if (!has_tensors_)
    throw rpc::Error(
        rpc::ErrorKind::invalid_argument,
        "trainer " + name + " cannot claim the rows of an embedding: the embedding's optimizer steps them");
  rpc::MutexLock lock(mutex_);
  if (ledger_.paused())
    throw rpc::Error(rpc::ErrorKind::failed_precondition,
                     "trainer " + name + " cannot claim these parameters: a restore is in flight; try again");
  if (claimed_ || !handles_.empty())
    throw rpc::Error(rpc::ErrorKind::failed_precondition,
                     "trainer " + name + " cannot claim these parameters: trainer " +
                         (claimed_ ? *claimed_ : ledger_.name_of(handles_.begin()->first)) + " steps them");
  claimed_ = name;
}

void OwnedParameters::end_claim() {
  rpc::MutexLock lock(mutex_);
  claimed_.reset();
}

void OwnedParameters::strike_off(const std::string& trainer, bool died) {
  After after;
  {
    rpc::MutexLock lock(mutex_);
    auto handle = handles_.find(trainer);
    if (handle == handles_.end()) return;
    if (--handle->second > 0 && !died) return;
    const std::string name = ledger_.name_of(trainer);
    handles_.erase(handle);
    if (died) std::erase_if(committed_, [&](const auto& entry) { return entry.second == trainer; });
    std::erase_if(prepared_, [&](const auto& entry) { return entry.first.first == trainer; });
    auto ended = error(rpc::ErrorKind::aborted, "trainer " + name + (died ? " died" : " has left"));
    for (PassKey pass : ledger_.remove_trainer(trainer)) admitted(pass, ended, after);
    if (round_ && died) {
      fail_pending(round_->die(trainer), error(rpc::ErrorKind::aborted, StepRound::describe_death(name)),
                   after);
    } else if (round_) {
      round_->leave(trainer);
    }
    tidy(after);
  }
  finish(after);
}

void OwnedParameters::end(std::exception_ptr error) {
  After after;
  {
    rpc::MutexLock lock(mutex_);
    ended_ = error;
    std::vector<std::string> trainers;
    for (const auto& [trainer, step] : pending_) trainers.push_back(trainer);
    fail_pending(trainers, error, after);
    while (!waiting_.empty()) admitted(waiting_.begin()->first, error, after);
  }
  finish(after);
}

// ---- passes

PassStatus OwnedParameters::status(PassKey pass) const {
  rpc::MutexLock lock(mutex_);
  PassStatus status;
  status.trainer = ledger_.trainer_of(pass);
  status.has_stepped = committed_.contains(pass);
  status.may_wait =
      mode_ && mode_->kind == StepMode::Kind::bounded_staleness && !ledger_.pin(pass) && !status.has_stepped;
  return status;
}

void OwnedParameters::admit(const std::string& trainer, PassKey pass, Admitted done,
                            std::optional<Version> version) {
  std::exception_ptr refused;
  {
    rpc::MutexLock lock(mutex_);
    try {
      if (ended_ != nullptr) std::rethrow_exception(ended_);
      if (committed_.contains(pass)) {
        throw rpc::Error(rpc::ErrorKind::failed_precondition,
                         "pass " + to_string(pass) + " has stepped these parameters already");
      }
      if (version && !has_tensors_)
        throw rpc::Error(rpc::ErrorKind::failed_precondition,
                         "admit: the rows of an embedding keep no versions; admit the pass without one");
      // In `hogwild` no pass waits. Its pin is used only to compute the staleness of its step.
      if (version) {
        ledger_.admit_at(trainer, pass, *version);
      } else if (ledger_.admit(trainer, pass) == PassLedger::Admission::waiting) {
        waiting_[pass].push_back(std::move(done));
        return;
      }
    } catch (...) {
      refused = std::current_exception();
    }
  }
  done(refused);
}

void OwnedParameters::release(PassKey pass) {
  After after;
  {
    rpc::MutexLock lock(mutex_);
    committed_.erase(pass);
    if (auto found = preparing(pass); found != prepared_.end()) {
      found->second.released.push_back(pass);
      return;
    }
    if (ledger_.release(pass)) {
      admitted(pass, error(rpc::ErrorKind::cancelled, "pass " + to_string(pass) + " was released"), after);
    }
    tidy(after);
  }
  finish(after);
}

OwnedParameters::Reading OwnedParameters::read(PassKey pass) {
  Reading reading;
  {
    rpc::MutexLock lock(mutex_);
    if (mode_ && mode_->kind == StepMode::Kind::hogwild) {
      streams_.follow();
      return reading;
    }
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
    rpc::MutexLock lock(mutex_);
    ledger_.unretain(*reading.retained_);
    throw;
  }
  streams_.follow();
  reading.owned_ = this;
  return reading;
}

OwnedParameters::Reading OwnedParameters::read_newest() {
  Reading reading;
  gate_.enter_newest();
  streams_.follow();
  reading.owned_ = this;
  return reading;
}

OwnedParameters::Reading& OwnedParameters::Reading::operator=(Reading&& other) noexcept {
  if (this == &other) return *this;
  leave();
  owned_ = std::exchange(other.owned_, nullptr);
  retained_ = std::exchange(other.retained_, std::nullopt);
  return *this;
}

void OwnedParameters::Reading::leave() {
  OwnedParameters* owned = std::exchange(owned_, nullptr);
  if (owned == nullptr) return;
  owned->streams_.note();
  owned->gate_.leave();
  After after;
  if (retained_) {
    rpc::MutexLock lock(owned->mutex_);
    owned->ledger_.unretain(*retained_);
    owned->tidy(after);
  }
  owned->finish(after);
}

// Fails the steps of trainers that joined and stepped while the previous round was applied: their passes are
// too old now.
void OwnedParameters::fail_outdated(After& after) {
  std::vector<std::pair<std::string, std::exception_ptr>> outdated;
  for (const auto& [trainer, step] : pending_) {
    std::vector<PassKey> open = step.passes;  // a pass that was released since has no effect
    std::erase_if(open, [&](PassKey pass) WEFT_REQUIRES(mutex_) { return !ledger_.pin(pass); });
    try {
      ledger_.check_step(trainer, open);
    } catch (...) {
      outdated.emplace_back(trainer, std::current_exception());
    }
  }
  for (const auto& [trainer, why] : outdated) fail_pending({trainer}, why, after);
}

void OwnedParameters::fail_pending(const std::vector<std::string>& trainers, const std::exception_ptr& error,
                                   After& after) {
  for (const std::string& trainer : trainers) {
    auto found = pending_.find(trainer);
    if (found == pending_.end()) continue;
    after.callbacks.push_back([done = std::move(found->second.done), error] { done(error, 0); });
    pending_.erase(found);
    round_->finish(trainer);
    ledger_.end_hold(trainer);
  }
}

void OwnedParameters::admitted(PassKey pass, const std::exception_ptr& error, After& after) {
  auto found = waiting_.find(pass);
  if (found == waiting_.end()) return;
  for (Admitted& done : found->second)
    after.callbacks.push_back([done = std::move(done), error] { done(error); });
  waiting_.erase(found);
}

// Call it after every end of a pin, a hold or a reader.
void OwnedParameters::tidy(After& after) {
  for (PassKey pass : ledger_.admit_waiting()) admitted(pass, nullptr, after);
  for (Version version : ledger_.take_dropped()) {
    versions_.drop(version);
    after.dropped = true;
  }
}

void OwnedParameters::finish(const After& after) {
  if (after.dropped) gate_.settle();
  for (const auto& callback : after.callbacks) callback();
}

OwnerState OwnedParameters::snapshot(const std::function<void()>& read) {
  const Reading reading = read_newest();  // steps and changes wait at the gate
  const auto turn = optimizer_.turn();
  read();
  OwnerState state;
  {
    rpc::MutexLock lock(mutex_);
    state.version = ledger_.newest();
  }
  if (const StepTarget* known = optimizer_.find()) {
    state.spec = known->spec();
    state.optimizer = known->state();
  }
  return state;
}

OwnerStats OwnedParameters::stats() const {
  OwnerStats stats;
  {
    rpc::MutexLock lock(mutex_);
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
