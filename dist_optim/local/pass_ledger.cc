#include <weft/dist_optim/local/pass_ledger.h>
#include <weft/rpc/core/error.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <string_view>
#include <utility>

namespace weft::dist_optim {
namespace {

std::string count_of(std::uint64_t count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

}  // namespace

std::string to_string(const PassKey& pass) {
  char digits[33];
  std::snprintf(digits, sizeof digits, "%016llx%016llx", static_cast<unsigned long long>(pass.hi),
                static_cast<unsigned long long>(pass.lo));
  return digits;
}

void PassLedger::add_trainer(const std::string& trainer, const std::string& name) {
  trainers_[trainer].name = name;
}

const std::string& PassLedger::name_of(const std::string& trainer) const {
  const auto found = trainers_.find(trainer);
  return found == trainers_.end() || found->second.name.empty() ? trainer : found->second.name;
}

void PassLedger::adopt_passes(const std::string& before, const std::string& trainer) {
  for (auto& [pass, entry] : open_)
    if (entry.trainer == before) entry.trainer = trainer;
  for (Waiting& entry : waiting_)
    if (entry.trainer == before) entry.trainer = trainer;
}

std::vector<PassKey> PassLedger::remove_trainer(const std::string& trainer) {
  std::vector<PassKey> open, waiting;
  for (const auto& [pass, entry] : open_) {
    if (entry.trainer == trainer) open.push_back(pass);
  }
  for (PassKey pass : open) close(pass);
  std::erase_if(waiting_, [&](const Waiting& entry) {
    if (entry.trainer != trainer) return false;
    waiting.push_back(entry.pass);
    return true;
  });
  trainers_.erase(trainer);
  held_.erase(trainer);
  return waiting;
}

void PassLedger::check_owner(const std::string& trainer, PassKey pass, const std::string& owner) const {
  if (owner == trainer) return;
  throw rpc::Error(rpc::ErrorKind::invalid_argument, "pass " + to_string(pass) + " belongs to trainer " +
                                                         name_of(owner) + ", not to " + name_of(trainer));
}

PassLedger::Admission PassLedger::admit(const std::string& trainer, PassKey pass) {
  if (auto found = open_.find(pass); found != open_.end()) {
    check_owner(trainer, pass, found->second.trainer);
    return Admission::admitted;
  }
  for (const Waiting& entry : waiting_) {
    if (entry.pass != pass) continue;
    check_owner(trainer, pass, entry.trainer);
    return Admission::waiting;
  }
  // This overtakes no waiting pass: the bound is the same for all trainers without open passes, and all
  // waiting passes that could be admitted have been admitted.
  if (may_open(trainer)) {
    open_now(trainer, pass);
    return Admission::admitted;
  }
  waiting_.push_back({trainer, pass});
  return Admission::waiting;
}

void PassLedger::admit_at(const std::string& trainer, PassKey pass, Version version) {
  const auto refuse = [&](const std::string& why) {
    throw rpc::Error(rpc::ErrorKind::failed_precondition, "admit: pass " + to_string(pass) + " of trainer " +
                                                              name_of(trainer) + " cannot read version " +
                                                              std::to_string(version) + ": " + why);
  };
  if (auto found = open_.find(pass); found != open_.end()) {
    check_owner(trainer, pass, found->second.trainer);
    if (found->second.pin != version) refuse("it reads version " + std::to_string(found->second.pin));
    return;
  }
  for (const Waiting& entry : waiting_)
    if (entry.pass == pass) refuse("it waits for the newest version");
  if (paused_) refuse("a restore is in flight; try again");
  if (mode_ && mode_->kind == StepMode::Kind::hogwild) refuse("the mode hogwild keeps no versions");
  if (version > newest_) refuse("the newest is " + std::to_string(newest_));
  if (version != newest_ && !references_.contains(version))
    refuse("it is no longer kept; the versions that are kept: " + kept_versions() +
           "; admit the pass while another open pass reads that version");
  if (mode_ && mode_->kind == StepMode::Kind::synchronous) {
    if (version != newest_)
      refuse("in the mode " + to_string(*mode_) + " a pass reads the newest, " + std::to_string(newest_));
    if (held_.contains(trainer)) refuse("the trainer's step waits for its round; await it first");
  }
  Open entry{trainer, version, 0, false, false};
  const auto known = trainers_.find(trainer);
  entry.owes_step = known != trainers_.end();
  open_.emplace(pass, std::move(entry));
  if (known != trainers_.end() && mode_ && mode_->kind == StepMode::Kind::bounded_staleness &&
      !keeps_bound(newest_, {}, 0)) {
    open_.erase(pass);
    refuse("the newest is " + std::to_string(newest_) + ", and with the steps that open passes owe " +
           to_string(*mode_) + " would be exceeded; step or release passes first");
  }
  retain(version);
  if (known != trainers_.end()) known->second.open.insert(pass);
}

std::string PassLedger::kept_versions() const {
  std::string text;
  for (const auto& [version, count] : references_)
    if (version != newest_) text += std::to_string(version) + ", ";
  return text + std::to_string(newest_);
}

std::vector<PassKey> PassLedger::admit_waiting() {
  std::vector<PassKey> admitted;
  for (auto entry = waiting_.begin(); entry != waiting_.end();) {
    if (!may_open(entry->trainer)) {
      ++entry;
      continue;
    }
    admitted.push_back(entry->pass);
    open_now(entry->trainer, entry->pass);
    waiting_.erase(entry);
    entry = waiting_.begin();  // the trainer's other passes may be admitted now, too
  }
  return admitted;
}

std::optional<std::string> PassLedger::trainer_of(PassKey pass) const {
  if (auto found = open_.find(pass); found != open_.end()) return found->second.trainer;
  for (const Waiting& entry : waiting_)
    if (entry.pass == pass) return entry.trainer;
  return std::nullopt;
}

std::optional<PassLedger::Version> PassLedger::pin(PassKey pass) const {
  auto found = open_.find(pass);
  if (found == open_.end()) return std::nullopt;
  return found->second.pin;
}

bool PassLedger::release(PassKey pass) {
  close(pass);
  return std::erase_if(waiting_, [&](const Waiting& entry) { return entry.pass == pass; }) > 0;
}

bool PassLedger::pause() {
  if (paused_ || !open_.empty() || !references_.empty()) return false;
  return paused_ = true;
}

void PassLedger::unretain(Version version) {
  auto found = references_.find(version);
  if (--found->second > 0) return;
  references_.erase(found);
  if (version != newest_) dropped_.push_back(version);
}

void PassLedger::end_hold(const std::string& trainer) {
  auto found = held_.find(trainer);
  if (found != held_.end() && --found->second == 0) held_.erase(found);
}

void PassLedger::prepare_step(const std::string& trainer, const std::vector<PassKey>& passes) {
  ++prepared_steps_;
  for (PassKey pass : passes)
    if (auto found = open_.find(pass); found != open_.end()) found->second.prepared = prepared_steps_;
  hold(trainer);
}

void PassLedger::end_prepared(const std::string& trainer, const std::vector<PassKey>& passes) {
  for (PassKey pass : passes)
    if (auto found = open_.find(pass); found != open_.end()) found->second.prepared = 0;
  end_hold(trainer);
}

std::uint64_t PassLedger::check_step(const std::string& trainer, const std::vector<PassKey>& passes) const {
  std::uint64_t staleness = 0;
  std::set<PassKey> stepping;
  for (PassKey pass : passes) {
    std::string name = "pass " + to_string(pass) + " of trainer " + name_of(trainer);
    auto found = open_.find(pass);
    if (found == open_.end()) {
      throw rpc::Error(
          rpc::ErrorKind::failed_precondition,
          name + " cannot step: it has not read these parameters, or was stepped or released before");
    }
    if (found->second.trainer != trainer) {
      throw rpc::Error(rpc::ErrorKind::invalid_argument,
                       name + " belongs to trainer " + name_of(found->second.trainer));
    }
    if (!stepping.insert(pass).second)
      throw rpc::Error(rpc::ErrorKind::invalid_argument, name + " is in this step twice");
    std::uint64_t age = newest_ - found->second.pin;
    staleness = std::max(staleness, age);
    if (!mode_ || mode_->kind == StepMode::Kind::hogwild) continue;
    std::uint64_t bound =
        mode_->kind == StepMode::Kind::bounded_staleness ? static_cast<std::uint64_t>(mode_->count) : 0;
    if (age > bound) {
      throw rpc::Error(rpc::ErrorKind::failed_precondition,
                       name + " cannot step: it reads parameters that are " + count_of(age, "step") +
                           " old, and " + to_string(*mode_) + " allows " + std::to_string(bound));
    }
  }
  if (!mode_ || mode_->kind != StepMode::Kind::bounded_staleness) return staleness;

  if (!keeps_bound(newest_ + 1, stepping, 0)) {
    throw rpc::Error(rpc::ErrorKind::failed_precondition,
                     "trainer " + name_of(trainer) + " cannot step " + count_of(passes.size(), "pass") +
                         " alone: a pass that stays open would read parameters older than " +
                         to_string(*mode_) + " allows; step them together or release them first");
  }
  return staleness;
}

std::uint64_t PassLedger::staleness(const PassesOfTrainers& passes) const {
  std::uint64_t staleness = 0;
  for (const auto& [trainer, keys] : passes) {
    for (PassKey key : keys)
      if (const auto read = pin(key)) staleness = std::max(staleness, newest_ - *read);
  }
  return staleness;
}

bool PassLedger::read_by_others(const PassesOfTrainers& passes) const {
  auto found = references_.find(newest_);
  if (found == references_.end()) return false;
  std::size_t own = 0;
  for (const auto& [trainer, keys] : passes) {
    own += static_cast<std::size_t>(
        std::count_if(keys.begin(), keys.end(), [&](PassKey key) { return pin(key) == newest_; }));
  }
  return found->second > own;
}

void PassLedger::step(const PassesOfTrainers& passes) {
  for (const auto& [trainer, keys] : passes) end_without_step(trainer, keys);
  ++newest_;
}

void PassLedger::end_without_step(const std::string& trainer, const std::vector<PassKey>& passes) {
  for (PassKey pass : passes) close(pass);
  if (auto found = trainers_.find(trainer); found != trainers_.end()) ++found->second.steps;
}

// Whether the rule permits this trainer to open a pass now, regardless of other waiting passes.
bool PassLedger::may_open(const std::string& trainer) const {
  if (paused_ || held_.contains(trainer)) return false;
  if (!mode_ || mode_->kind != StepMode::Kind::bounded_staleness) return true;
  auto registered = trainers_.find(trainer);
  if (registered == trainers_.end() || !registered->second.open.empty()) return true;
  return keeps_bound(newest_, {}, 1);
}

// Whether the bound holds for all open passes except these. more_owed: steps of trainers without open passes,
// with passes that pin the newest version.
bool PassLedger::keeps_bound(Version newest, const std::set<PassKey>& without, std::size_t more_owed) const {
  // The steps that each trainer owes, in their order, with the oldest pin of each.
  constexpr auto last = std::numeric_limits<std::uint64_t>::max();
  std::map<std::string_view, std::map<std::uint64_t, Version>> owed;
  for (const auto& [pass, entry] : open_) {
    if (!entry.owes_step || without.contains(pass)) continue;
    auto [found, first] =
        owed[entry.trainer].try_emplace(entry.prepared == 0 ? last : entry.prepared, entry.pin);
    if (!first) found->second = std::min(found->second, entry.pin);
  }
  std::uint64_t steps = more_owed;
  for (const auto& [trainer, own] : owed) steps += own.size();
  const auto bound = static_cast<std::uint64_t>(mode_->count);
  for (const auto& [trainer, own] : owed) {
    std::uint64_t before = steps - own.size();
    for (const auto& [order, pin] : own)
      if (newest - pin + before++ > bound) return false;
  }
  return more_owed == 0 || steps - 1 <= bound;
}

void PassLedger::open_now(const std::string& trainer, PassKey pass) {
  Open entry{trainer, newest_, 0, false};
  if (auto found = trainers_.find(trainer); found != trainers_.end()) {
    entry.owes_step = true;
    entry.group = found->second.steps;
    if (mode_ && mode_->kind == StepMode::Kind::bounded_staleness) {
      for (PassKey other : found->second.open) {
        const Open& opened = open_.at(other);
        if (opened.shares_pin && opened.group == entry.group) entry.pin = std::min(entry.pin, opened.pin);
      }
    }
    found->second.open.insert(pass);
  }
  retain(entry.pin);
  open_[pass] = std::move(entry);
}

void PassLedger::close(PassKey pass) {
  auto found = open_.find(pass);
  if (found == open_.end()) return;
  if (auto trainer = trainers_.find(found->second.trainer); trainer != trainers_.end()) {
    trainer->second.open.erase(pass);
  }
  Version pin = found->second.pin;
  open_.erase(found);
  unretain(pin);
}

}  // namespace weft::dist_optim
