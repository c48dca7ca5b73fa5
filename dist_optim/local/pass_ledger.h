// PassLedger: the versions of one object's parameters that passes read, and the passes that wait before they
// read.
//
// A pass pins the version that is newest when it is admitted. Under bounded_staleness(k), all passes that one
// trainer opens between two of its steps share the pin of the first of these passes. A pin ends with its
// pass's step or release. The staleness of a step is the number of steps since the oldest pin among its
// passes.
//
// Admission under bounded_staleness(k). A trainer with open passes owes one step. In the worst case, all
// steps that other trainers owe are made before this step. No step can exceed the bound, and no step has to
// wait, exactly if for every trainer with open passes
//    (newest − its oldest pin) + (steps that the other trainers owe) ≤ k.
// A pass is admitted if the inequality still holds with this pass. Otherwise it waits, in the order of
// arrival. A further pass of a trainer with open passes changes neither term and is admitted at once. If no
// pass is open, the left side is 0: so if every open pass ends eventually, every waiting pass is admitted
// eventually. If a step leaves some of its trainer's passes open, the trainer owes another step, which was
// not counted. The step is refused if it would break the bound for a pass that stays open.
//
// A step may be prepared first and made later. In between, its trainer owes it in addition to the step of the
// passes that stay open, and the trainer's passes wait, except passes that name a version. So if a trainer
// makes its steps in the order in which it prepared them, a step that was allowed when it was prepared is
// allowed when it is made.
//
// A pass may name the version that it reads (weight stashing and vertical sync of PipeDream, Narayanan et al.
// 2019; 2BW, Narayanan et al. 2021). Such a pass is admitted at once or refused: a pin or a reader must keep
// the version, and the bound must hold with the pass. It shares its pin with no other pass.
//
// The ledgers of different objects are independent. If passes were admitted to several objects in different
// orders, they could wait for one another in a cycle. PassAdmission therefore admits the passes in the same
// order on all objects.
//
// Passes of a trainer that is not registered also pin a version, but they owe no step and never wait.
//
// Pure data: no clock, no thread, no tensor. Owner: OwnedParameters, under its mutex.
#pragma once

#include <weft/dist_optim/local/step_mode.h>
#include <weft/rpc/core/export.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace weft::dist_optim {

// A pass, by its id.
struct PassKey {
  std::uint64_t hi = 0, lo = 0;
  friend constexpr auto operator<=>(const PassKey&, const PassKey&) = default;
};

// 32 hexadecimal digits.
WEFT_EXPORT std::string to_string(const PassKey& pass);

class WEFT_EXPORT PassLedger {
 public:
  // Version: the number of a version. PassesOfTrainers: open passes by their trainer.
  using Version = std::uint64_t;
  using PassesOfTrainers = std::map<std::string, std::vector<PassKey>>;
  enum class Admission { admitted, waiting };

  // Until set_mode() is called, passes pin a version and never wait.
  void set_mode(StepMode mode) { mode_ = mode; }
  // name: the trainer's name in messages; empty: its key.
  void add_trainer(const std::string& trainer, const std::string& name = {});
  const std::string& name_of(const std::string& trainer) const;              // in messages
  void adopt_passes(const std::string& before, const std::string& trainer);  // renames the trainer of passes
  // Ends all passes of the trainer; returns those that waited.
  std::vector<PassKey> remove_trainer(const std::string& trainer);

  // Admits the pass, or lets it wait. A second call for the same pass changes nothing. `invalid_argument`:
  // the pass belongs to another trainer.
  Admission admit(const std::string& trainer, PassKey pass);
  // Admits the pass at the given version. `failed_precondition`: the version is not kept or is older than the
  // mode allows, the pass reads or waits for another version, or the trainer's step waits for its round.
  void admit_at(const std::string& trainer, PassKey pass, Version version);
  // Admits the waiting passes that may now read, and returns them in order. Call it whenever a pin or a hold
  // has ended.
  std::vector<PassKey> admit_waiting();
  // Makes the trainer's passes wait until its synchronous round ends, because the parameters that they would
  // read now would then be old. Each hold() needs one end_hold(); remove_trainer() ends all holds of the
  // trainer.
  void hold(const std::string& trainer) { ++held_[trainer]; }
  void end_hold(const std::string& trainer);

  // The trainer of an open or waiting pass.
  std::optional<std::string> trainer_of(PassKey pass) const;
  // The version that an open pass reads.
  std::optional<Version> pin(PassKey pass) const;
  // Ends the pass, open or waiting. True if it was waiting.
  bool release(PassKey pass);

  // Keeps a version, in addition to its pins, for a reader that uses the parameters or is about to.
  void retain(Version version) { ++references_[version]; }
  void unretain(Version version);

  // The staleness of a step of these passes now. `failed_precondition`, which names pass and trainer, if one
  // of the passes is not open, if the mode's bound is broken, or if the bound would break for a pass that
  // stays open.
  std::uint64_t check_step(const std::string& trainer, const std::vector<PassKey>& passes) const;

  // The staleness of a step of these passes. Passes that are not open do not count, and the mode's bound is
  // not checked.
  std::uint64_t staleness(const PassesOfTrainers& passes) const;

  // prepare_step() records a step that check_step() allowed, and holds its trainer. Call end_prepared()
  // shortly before or after the step is made, or when it is given up. In between, passes of the step may end.
  void prepare_step(const std::string& trainer, const std::vector<PassKey>& passes);
  void end_prepared(const std::string& trainer, const std::vector<PassKey>& passes);

  // Whether a reader, or a pass other than these, still needs the newest version. If so, the step of these
  // passes must not change it in place.
  bool read_by_others(const PassesOfTrainers& passes) const;
  // Records a step: ends the passes and makes a new version.
  void step(const PassesOfTrainers& passes);
  // Records a step that has no gradients here: ends the passes, and makes no new version.
  void end_without_step(const std::string& trainer, const std::vector<PassKey>& passes);

  // Until resume(), passes wait, and passes that name a version are refused. Returns false, without an
  // effect, if a pass is open or a reader uses the parameters.
  bool pause();
  void resume() { paused_ = false; }
  bool paused() const { return paused_; }
  // While it is paused: sets the number of the newest version.
  void renumber(Version newest) { newest_ = newest; }

  // The old versions that became unnecessary since the last call.
  std::vector<Version> take_dropped() { return std::exchange(dropped_, {}); }

  // The number of the newest version, and the numbers of open and of waiting passes.
  Version newest() const { return newest_; }
  std::size_t open() const { return open_.size(); }
  std::size_t waiting() const { return waiting_.size(); }

 private:
  struct Open {
    std::string trainer;
    Version pin;
    std::uint64_t group;  // the number of steps that its trainer had made
    bool owes_step;
    bool shares_pin = true;      // true: it shares the pin of its trainer's passes of the same group
    std::uint64_t prepared = 0;  // the prepared step that it is in; 0: none
  };
  struct Waiting {
    std::string trainer;
    PassKey pass;
  };
  struct Trainer {
    std::string name;
    std::uint64_t steps = 0;
    std::set<PassKey> open;
  };

  void check_owner(const std::string& trainer, PassKey pass, const std::string& owner) const;
  std::string kept_versions() const;
  bool may_open(const std::string& trainer) const;
  bool keeps_bound(Version newest, const std::set<PassKey>& without, std::size_t more_owed) const;
  void open_now(const std::string& trainer, PassKey pass);
  void close(PassKey pass);

  std::optional<StepMode> mode_;
  Version newest_ = 0;
  bool paused_ = false;
  std::map<PassKey, Open> open_;
  std::map<std::string, Trainer> trainers_;  // the registered ones
  std::map<std::string, std::size_t> held_;
  std::uint64_t prepared_steps_ = 0;  // so far
  std::deque<Waiting> waiting_;
  std::map<Version, std::size_t> references_;  // pins and readers
  std::vector<Version> dropped_;
};

}  // namespace weft::dist_optim

template <>
struct std::hash<weft::dist_optim::PassKey> {
  std::size_t operator()(const weft::dist_optim::PassKey& pass) const noexcept {
    return static_cast<std::size_t>(pass.hi * 0x9e3779b97f4a7c15ULL ^ pass.lo);
  }
};
