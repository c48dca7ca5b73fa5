#include <weft/dist_optim/local/step_round.h>
#include <weft/rpc/core/error.h>

#include <algorithm>
#include <utility>

namespace weft::dist_optim {

void StepRound::join(const std::string& trainer, const std::string& given) {
  const std::string& name = given.empty() ? trainer : given;
  if (trainers_.contains(trainer)) return;
  if (seats_ > 0 && !seats_empty()) {
    if (vacated_ == 0) {
      std::string names;
      for (const auto& [key, joined] : trainers_) names += (names.empty() ? "" : ", ") + joined;
      throw rpc::Error(rpc::ErrorKind::invalid_argument, "trainer " + name + " cannot join: a round has " +
                                                             std::to_string(seats_) +
                                                             " trainers, and these have joined: " + names);
    }
    --vacated_;
  }
  trainers_.emplace(trainer, name);
  if (!seats_empty()) missed_.clear();
}

void StepRound::leave(const std::string& trainer) {
  if (trainers_.erase(trainer) == 0) return;
  to_hear_.erase(trainer);
  if (seats_ > 0) ++vacated_;
}

std::vector<std::string> StepRound::die(const std::string& trainer) {
  const auto found = trainers_.find(trainer);
  if (found == trainers_.end()) return {};
  const std::string dead = found->second;
  trainers_.erase(found);
  to_hear_.erase(trainer);
  if (seats_ > 0) missed_ = dead;
  for (const auto& [survivor, name] : trainers_) {
    if (!arrived_.contains(survivor)) to_hear_[survivor] = dead;
  }
  std::vector<std::string> failed(arrived_.begin(), arrived_.end());
  arrived_.clear();
  return failed;
}

void StepRound::expect(const std::string& trainer) {
  if (arrived_.contains(trainer) || closing_.contains(trainer)) {
    const auto known = trainers_.find(trainer);
    throw rpc::Error(rpc::ErrorKind::failed_precondition,
                     "trainer " + (known == trainers_.end() ? trainer : known->second) +
                         " has stepped in this round already, which waits for others");
  }
  std::string dead = missed_;
  if (auto found = to_hear_.find(trainer); found != to_hear_.end()) {
    dead = found->second;
    to_hear_.erase(found);
  }
  if (!dead.empty()) throw rpc::Error(rpc::ErrorKind::aborted, describe_death(dead));
}

void StepRound::arrive(const std::string& trainer) {
  expect(trainer);
  arrived_.insert(trainer);
}

bool StepRound::complete() const {
  if (arrived_.empty() || !closing_.empty() || seats_empty()) return false;
  return std::all_of(trainers_.begin(), trainers_.end(),
                     [&](const auto& known) { return arrived_.contains(known.first); });
}

void StepRound::close() { closing_ = std::exchange(arrived_, {}); }

void StepRound::finish(const std::string& trainer) {
  arrived_.erase(trainer);
  closing_.erase(trainer);
}

std::string StepRound::describe_death(const std::string& name) {
  return "the synchronous round has failed: trainer " + name + " died; nothing was applied";
}

}  // namespace weft::dist_optim
