// OwnedParameters: one served object's parameters on their owner. It manages the versions that passes read,
// and the order of steps.
//
// One OwnedParameters per object; all optimizer handles on it share it and so the optimizer's state. The
// first trainer to register sets the optimizer and the mode (step_mode.h); other trainers must register the
// same ones. A pass is admitted before it first reads, reads within read() (forward handlers and backward
// nodes), and ends with its step or its release. A step applies exactly the given gradients: in place if no
// other pass reads that version, otherwise to a copy. A refused operation changes nothing. If LibTorch itself
// fails in the middle of a step, some parameters may have stepped and others not.
//
// While no pass on an old version is open and no thread reads, the module's tensors hold the newest version.
// Code of the owner that reads the tensors at other times (for example to save them) uses read_newest().
//
// Owner: the object's agent, which keeps it as long as the object and longer than every Reading.
//
// Thread-safety: full. read() and step() block while others read or step; all other functions return at once.
// Callbacks run on the thread that ended the wait, possibly before the call returns, and never under a lock;
// they must not throw. On accelerators each use of the parameters also waits for earlier uses, on the current
// streams of its thread; a step also waits for its gradients.
#pragma once

#include <weft/dist_optim/local/gradients.h>
#include <weft/dist_optim/local/optimizer_spec.h>
#include <weft/dist_optim/local/optimizer_state.h>
#include <weft/dist_optim/local/owner_optimizer.h>
#include <weft/dist_optim/local/owner_stats.h>
#include <weft/dist_optim/local/parameter_streams.h>
#include <weft/dist_optim/local/parameter_versions.h>
#include <weft/dist_optim/local/pass_ledger.h>
#include <weft/dist_optim/local/step_mode.h>
#include <weft/dist_optim/local/step_round.h>
#include <weft/dist_optim/local/step_target.h>
#include <weft/dist_optim/local/version_gate.h>
#include <weft/rpc/core/export.h>
#include <weft/rpc/core/mutex.h>
#include <weft/rpc/tensor/on_streams.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace weft::dist_optim {

// The gradients of one pass.
struct PassGradients {
  PassKey pass;
  Gradients gradients;
};

// The state of OwnedParameters in addition to the values of its parameters.
struct OwnerState {
  std::uint64_t version = 0;
  OptimizerSpec spec;  // without a name: no trainer has registered an optimizer
  OptimizerState optimizer;
};

// The state of a pass at the owner.
struct PassStatus {
  std::optional<std::string> trainer;  // the trainer for which the pass is admitted, or waits for admission
  bool may_wait = false;               // true: admit() may wait (bounded_staleness; not admitted yet)
  bool has_stepped = false;            // the pass has stepped, and has not been released since
};

class WEFT_EXPORT OwnedParameters {
 public:
  // Version: the number of a version. Admitted, Stepped: called when admit() or a step completes. error: null
  // if it succeeded.
  using Version = std::uint64_t;
  using Admitted = std::function<void(std::exception_ptr error)>;
  using Stepped = std::function<void(std::exception_ptr error, Version version)>;

  // A scope in which one thread reads the parameters. It ends when this object is destroyed.
  class WEFT_EXPORT Reading {
   public:
    Reading() = default;
    Reading(Reading&& other) noexcept { *this = std::move(other); }
    Reading& operator=(Reading&& other) noexcept;
    ~Reading() { leave(); }
    // Ends the reading early.
    void leave();

   private:
    friend class OwnedParameters;
    OwnedParameters* owned_ = nullptr;  // null in `hogwild`, where reads do not wait
    std::optional<Version> retained_;   // empty for read_newest()
  };

  // `invalid_argument` if these cannot be owned parameters (check_parameters). From now on, only this object
  // may move the parameters: do not call module.to(…).
  explicit OwnedParameters(std::vector<Parameter> parameters);
  // For the rows of an embedding, which are not tensors. Rows have no versions: a step changes them in place,
  // even if another pass reads an older version. make: creates the optimizer that the first trainer requests;
  // register_trainer() throws the errors that `make` throws.
  using MakeTarget = std::function<std::unique_ptr<StepTarget>(const OptimizerSpec&)>;
  explicit OwnedParameters(MakeTarget make);
  ~OwnedParameters();
  OwnedParameters(const OwnedParameters&) = delete;
  OwnedParameters& operator=(const OwnedParameters&) = delete;

  // Call once per optimizer handle. The first handle, and the first one after all handles have been
  // destroyed, sets the optimizer and the mode. An optimizer with other options than before begins without
  // state. `invalid_argument` if the optimizer or the mode differs from that of the other handles (the
  // message names both), or if a synchronous round is full. `failed_precondition` while the parameters are
  // claimed, while a step of earlier handles is in flight, or during a restore. name: defines the order of
  // the trainers in a round's sum, and names the trainer in messages.
  void register_trainer(const std::string& trainer, const OptimizerSpec& spec, StepMode mode,
                        const std::string& name = {});
  // The passes of `before` become passes of `trainer`. For passes that were admitted before the owner knew
  // which agent had created them.
  void adopt_passes(const std::string& before, const std::string& trainer);
  bool is_registered(const std::string& trainer) const;
  std::vector<std::string> trainers() const;  // the registered trainers
  bool is_stepped() const;                    // some trainer is registered, or a step is in flight
  // Changes from one synchronous mode to another, for all registered trainers. `failed_precondition` while a
  // step is prepared or waits for its round, or if the present or the new mode is not synchronous.
  // `invalid_argument` if the mode's number of trainers is less than the number of registered trainers.
  void set_mode(StepMode mode);
  // Ends one handle of the trainer. If this was the trainer's last handle, or if the trainer died, the
  // trainer's passes end, too. step_round.h describes the effect on a synchronous round. The optimizer's
  // state stays, even after the last trainer. Afterwards call close_rounds() on a thread that may step: it
  // applies a round that is now complete.
  void strike_off(const std::string& trainer, bool died);
  void close_rounds();
  // Fails what waits for a round or for an admission, and what would wait later, with `error`.
  void end(std::exception_ptr error);

  // Claims the parameters for an optimizer of one trainer that has its own state and steps by change()
  // (LbfgsOwner). No trainer may register until end_claim(). `failed_precondition` while a trainer is
  // registered or has claimed the parameters, or during a restore. `invalid_argument` for rows. name: the
  // trainer's name, for messages.
  void claim(const std::string& name);
  void end_claim();

  // Admits the pass. Call it before the pass's first read() here; calling it again has no effect. Under
  // bounded_staleness(k) the pass may wait for other trainers' steps. In synchronous mode, if the trainer has
  // already stepped in the present round, the pass waits for the end of the round: the parameters that the
  // pass would read now would be too old for the trainer's next step. Errors: `cancelled` if the pass is
  // released, `aborted` if the trainer ends meanwhile. version: the pass reads this version, which the owner
  // must still keep. Then the pass does not wait, and the errors are those of PassLedger::admit_at.
  // `failed_precondition` for rows, which keep no versions.
  void admit(const std::string& trainer, PassKey pass, Admitted done, std::optional<Version> version = {});

  // The state of the pass at this owner.
  PassStatus status(PassKey pass) const;

  // read(): waits until the pass's version is in the module's tensors. `failed_precondition` if the pass is
  // not admitted, or if this thread already reads another version. read_newest(): the same for the newest
  // version.
  Reading read(PassKey pass);
  Reading read_newest();

  // Steps with the sum of the passes' gradients. Gradients are identified by index into parameters().
  // bounded_staleness and hogwild: the step is applied now. synchronous: the step is applied with the sum
  // over the round's trainers, in the order of their names, so that the result does not depend on timing. If
  // there is no gradient, nothing is applied and the version stays; in a round, such a step still counts as
  // arrived. Errors: those of check_gradients and PassLedger::check_step; `aborted` if a trainer of the round
  // died.
  void step(const std::string& trainer, std::vector<PassGradients> passes, Stepped done);

  // A step in two phases, for a step over several objects. prepare() performs all checks of step(), sums and
  // measures the gradients, and changes nothing. commit() applies the decision over all objects, and abort()
  // drops the gradients. Until the step is made, the passes belong to it: a pass that is released keeps its
  // version, no other step may use the pass, and in a round the trainer may not prepare another step. The
  // trainer's further passes wait before they read. A pass steps once: prepare() and admit() refuse a
  // committed pass with `failed_precondition`. A pass without gradients ends with the commit. abort() leaves
  // all passes open. If the trainer is removed, its prepared steps end. number: identifies the step among
  // those of the trainer. passes: the number of passes of the step, including those without gradients here.
  StepPart prepare(const std::string& trainer, std::uint64_t number, std::vector<PassGradients> gradients,
                   const StepOptions& options, std::size_t passes);
  void commit(const std::string& trainer, std::uint64_t number, const StepDecision& decision, Stepped done);
  void abort(const std::string& trainer, std::uint64_t number);

  // Runs `body` exclusively. `body` may write new values into the parameters' storages. This makes a new
  // version, like a step, but no trainer makes it. Passes that read an older version keep it, and are one
  // step older (in synchronous mode their own step is then refused). In `hogwild`, all passes read the new
  // values at once. The optimizer's state stays, or becomes `optimizer`. No step and no snapshot() runs
  // between the changes of the values and of the state. If the state is refused, nothing changes.
  void change(const std::function<void()>& body, const OptimizerState* optimizer = nullptr);

  // Ends the pass; no effect if it has ended or is unknown.
  void release(PassKey pass);

  // Lives as long as this object.
  OwnerOptimizer& optimizer() { return optimizer_; }
  // The optimizer with its state, and the result of `read`: the newest version of the parameters. No step and
  // no change() runs in between, so the parameters and the state are of the same version.
  OwnerState snapshot(const std::function<void()>& read);
  // Restores a snapshot: sets the optimizer, its state and the version, and calls `write`, which runs
  // exclusively and writes the values into the parameters' tensors. Attached trainers must have the options
  // of the snapshot. If no trainer is attached, the first one that registers these options continues with the
  // state. Admissions wait until the restore has ended. After an error nothing has changed, provided that a
  // `write` that throws has written nothing. `failed_precondition` while a pass is open or a step is in
  // flight, or while the parameters are claimed; `invalid_argument` if the optimizer or its state is refused,
  // and for rows.
  void restore(const OwnerState& state, const std::function<void()>& write);

  const std::vector<Parameter>& parameters() const { return parameters_; }  // constant
  OwnerStats stats() const;                                                 // a copy

 private:
  // The work that is left when mutex_ is unlocked (finish()).
  struct After {
    std::vector<std::function<void()>> callbacks;
    bool dropped = false;  // a version
  };
  struct PendingStep {
    std::vector<PassKey> passes;
    Gradients gradients;
    Stepped done;
    std::string name;          // the name of the step's trainer
    tensor::StreamMarks made;  // the positions of the streams that made the gradients
  };
  struct PreparedStep {
    PendingStep step;  // until the commit; its passes are those with gradients here
    std::vector<PassKey> passes;
    std::vector<PassKey> released;  // passes that were released since prepare()
    bool holds = false;             // PassLedger::prepare_step() was called
    bool committing = false;
  };
  using PreparedSteps = std::map<std::pair<std::string, std::uint64_t>, PreparedStep>;
  struct Applied {
    Version version = 0;
    std::exception_ptr error;
  };

  void begin_restore(const OptimizerSpec& spec);
  bool in_flight() const WEFT_REQUIRES(mutex_);
  PendingStep gather(const std::string& trainer, std::vector<PassGradients> passes) const;
  Gradients sum_gradients(const std::string& trainer, const std::vector<PassGradients>& passes) const;
  std::vector<PassKey> passes_to_step(const std::vector<PassGradients>& passes) const WEFT_REQUIRES(mutex_);
  void carry_out(const std::string& trainer, PendingStep step);
  PreparedSteps::iterator preparing(PassKey pass) WEFT_REQUIRES(mutex_);
  void end_prepared(const std::string& trainer, std::uint64_t number);
  void arrive(const std::string& trainer, PendingStep step);
  Applied apply(const PassLedger::PassesOfTrainers& passes, const Gradients& gradients);
  std::optional<Version> apply_alone(const PassLedger::PassesOfTrainers& passes, const Gradients& gradients,
                                     Applied& applied);
  void fail_pending(const std::vector<std::string>& trainers, const std::exception_ptr& error, After& after)
      WEFT_REQUIRES(mutex_);
  void fail_outdated(After& after) WEFT_REQUIRES(mutex_);
  void admitted(PassKey pass, const std::exception_ptr& error, After& after) WEFT_REQUIRES(mutex_);
  void tidy(After& after) WEFT_REQUIRES(mutex_);
  void finish(const After& after) WEFT_EXCLUDES(mutex_);

  const bool has_tensors_;
  const std::vector<Parameter> parameters_;
  const MakeTarget make_target_;
  ParameterStreams streams_{parameters_};
  ParameterVersions versions_;
  VersionGate gate_;

  // Lock order: the gate's exclusive section, a turn of optimizer_, mutex_, then the mutexes of versions_ and
  // optimizer_. The gate is never entered with a turn or under a mutex.
  OwnerOptimizer optimizer_;
  mutable rpc::Mutex mutex_;
  std::optional<StepMode> mode_ WEFT_GUARDED_BY(mutex_);
  std::map<std::string, int> handles_ WEFT_GUARDED_BY(mutex_);  // the number of handles of each trainer
  // The trainer that has claimed the parameters; handles_ is then empty.
  std::optional<std::string> claimed_ WEFT_GUARDED_BY(mutex_);
  PassLedger ledger_ WEFT_GUARDED_BY(mutex_);
  std::exception_ptr ended_ WEFT_GUARDED_BY(mutex_);                          // of end(), null before
  std::map<PassKey, std::vector<Admitted>> waiting_ WEFT_GUARDED_BY(mutex_);  // passes that wait in ledger_
  std::optional<StepRound> round_ WEFT_GUARDED_BY(mutex_);                    // in synchronous mode
  std::map<std::string, PendingStep> pending_ WEFT_GUARDED_BY(mutex_);  // the steps that wait for their round
  PreparedSteps prepared_ WEFT_GUARDED_BY(mutex_);
  // Committed passes with their trainers, until the passes are released.
  std::map<PassKey, std::string> committed_ WEFT_GUARDED_BY(mutex_);
  std::map<std::uint64_t, std::uint64_t> staleness_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::dist_optim
