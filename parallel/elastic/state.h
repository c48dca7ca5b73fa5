// State: the objects that training must keep when the workers change. It refers to the program's objects and
// keeps a copy of them in memory, the commit.
//
//   elastic::State state;
//   state.add("model", model).add("optimizer", optimizer).add("sampler", sampler).add("epoch", epoch);
//
// The program commits at the end of a step, on all ranks at the same steps. After a failure run() restores
// the last commit on the survivors, and gives all ranks the state of the rank with the most commits. If
// workers want to join or leave, a commit throws WorkersChanged on all ranks at the same step. The objects
// must outlive the State. Not thread-safe, except leave().
//
// With step() instead, each step is a transaction: all ranks apply it, or none does. After a failure the
// survivors continue from the last step that was applied, without a copy of the state.
//
// Gradients are not state: restore() and sync() remove those of modules.
#pragma once

#include <weft/parallel/data_parallel/local_sgd.h>
#include <weft/parallel/elastic/elastic_sampler.h>
#include <weft/parallel/elastic/plan/generation.h>
#include <weft/parallel/elastic/state_part.h>

#include <ATen/core/Generator.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/optimizer.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace weft::elastic {

// Thrown by commit(), commit_every(), check() and step(), on all ranks at the same step, if workers join or
// leave. run() catches it; the body of run() must not. It is not an rpc::Error, so that a program does not
// handle it as the failure of a collective.
class WEFT_EXPORT WorkersChanged : public std::runtime_error {
 public:
  WorkersChanged();
  ~WorkersChanged() override;
};

// Whether the ranks share the value of an object that is added to a State.
enum class Scope : std::uint8_t {
  job,   // synchronized: all ranks have the same value
  rank,  // committed and restored, but not synchronized: a new worker keeps its initial value
};

namespace detail {

WEFT_EXPORT std::shared_ptr<StatePart> module_part(std::shared_ptr<torch::nn::Module> module);
WEFT_EXPORT std::shared_ptr<StatePart> optimizer_part(torch::optim::Optimizer& optimizer);
WEFT_EXPORT std::shared_ptr<StatePart> sampler_part(ElasticSampler sampler);
bool is_sampler(const StatePart& part);
bool in_round(const StatePart& part);  // a sampler, within a batch that is not recorded
WEFT_EXPORT std::shared_ptr<StatePart> local_sgd_part(data_parallel::LocalSgd& outer);
WEFT_EXPORT std::shared_ptr<StatePart> generator_part(at::Generator generator);
WEFT_EXPORT std::shared_ptr<StatePart> tensors_part(std::vector<at::Tensor> tensors);

template <class T>
class ValuePart final : public StatePart {
 public:
  explicit ValuePart(T& live) : live_(live) {}
  std::string kind() const override { return rpc::type_text<T>(); }
  void commit() override { commit_ = live_; }
  void restore() override { live_ = commit_.value(); }
  void mark() override { mark_ = live_; }
  void rewind() override { live_ = mark_.value(); }
  void sync(const collectives::Group& group, int source) override {
    live_ = group.broadcast_object(live_, source).get();
  }

 private:
  T& live_;
  std::optional<T> commit_, mark_;
};

template <class T>
std::shared_ptr<StatePart> part_of(T& object) {
  if constexpr (std::is_base_of_v<torch::optim::Optimizer, T>) {
    return optimizer_part(object);
  } else if constexpr (std::is_base_of_v<ElasticSampler, T>) {
    return sampler_part(object);
  } else if constexpr (std::is_same_v<T, data_parallel::LocalSgd>) {
    return local_sgd_part(object);
  } else if constexpr (std::is_convertible_v<T&, std::shared_ptr<StatePart>>) {
    return object;
  } else if constexpr (std::is_convertible_v<T&, std::shared_ptr<torch::nn::Module>>) {
    return module_part(object);
  } else if constexpr (requires {
                         typename T::ContainedType;
                         object.ptr();
                       }) {  // a module holder
    return module_part(object.ptr());
  } else if constexpr (std::is_same_v<T, at::Generator>) {
    return generator_part(object);
  } else if constexpr (std::is_same_v<T, at::Tensor>) {
    return tensors_part({object});
  } else if constexpr (std::is_same_v<T, std::vector<at::Tensor>>) {
    return tensors_part(object);
  } else {
    static_assert(
        rpc::Transferable<T> && std::is_copy_assignable_v<T>,
        "weft: elastic::State expects a module, an optimizer, a sampler, a LocalSgd, a generator, "
        "tensors, or a value that can be copied and travels (WEFT_CODEC); other types need a StatePart");
    return std::make_shared<ValuePart<T>>(object);
  }
}

class StateAccess;

}  // namespace detail

// The vote of one rank at the end of a step, or the result over all ranks.
struct Vote {
  bool change = false;  // some rank has detected that workers join or leave
  bool veto = false;    // some rank is not ready: the step is not applied
};

class WEFT_EXPORT State {
 public:
  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  // Adds an object. object: a module (shared_ptr or holder: its parameters and buffers), an optimizer of
  // LibTorch, an ElasticSampler, a LocalSgd, a generator, a tensor or a vector of tensors (their contents), a
  // value that can be copied and serialized, or a shared_ptr<StatePart>. Names and kinds are compared between
  // the ranks. Throws already_exists for a name that was added before.
  template <class T>
  State& add(std::string name, T& object, Scope scope = Scope::job) {
    return add_part(std::move(name), detail::part_of(object), scope);
  }

  // Copies all parts, and then lets the ranks agree whether workers join or leave. Call it at the end of a
  // step. The agreement is one small collective within run(); outside of run() the ranks do not agree. Throws
  // WorkersChanged and the errors of the group, and failed_precondition if a sampler's batch is processed and
  // not recorded (ElasticSampler::in_round()): call record() before commit(), commit_every(), check(), and
  // within apply() of step().
  void commit();
  // Commits in every nth call since the last commit; the other calls have no effect. All ranks call it
  // equally often.
  void commit_every(std::uint64_t n);
  // Lets the ranks agree as commit() does. It copies the parts only if workers join or leave.
  void check();

  // Ends a step as a transaction, in two phases. Before this call, no code may change a parameter. The ranks
  // vote in one small collective. If all ranks are ready, each rank calls apply(), which steps the optimizer
  // and counts the step, and must run no collective. Otherwise no rank calls it. Each applied step counts as
  // a commit. Returns whether the step was applied. ready: false, for example, if this rank has gradients
  // that are not finite.
  //
  // If workers join or leave, step() throws WorkersChanged after apply(), on all ranks. If the group fails,
  // step() throws the group's error without calling apply(). Another rank may have applied the step
  // nevertheless: run() then uses that rank's state.
  bool step(const std::function<void()>& apply, bool ready = true);

  // Restores all parts from the last commit(). Throws failed_precondition before the first commit().
  void restore();
  // Copies all parts of the lowest rank with the most commits to all ranks, and commits them. All ranks of
  // the group call it. Returns that rank; if all ranks have the same commit already, copies nothing and
  // returns nullopt. Throws failed_precondition, which names the first difference, if the ranks have added
  // different parts; also the errors of the group.
  std::optional<int> sync(const collectives::Group& group);

  // The number of commits and applied steps of the training, including those before this worker joined.
  std::uint64_t commits() const { return standing_.commits; }
  // Makes this worker leave at the next commit, check() or applied step: run() then returns. If leave() is
  // called before run(), run() returns at once, without training. Any thread may call it.
  void leave() { leaving_ = true; }

 private:
  friend class detail::StateAccess;  // run()

  struct Part {
    std::string name;
    std::shared_ptr<StatePart> part;
    Scope scope;
  };
  State& add_part(std::string name, std::shared_ptr<StatePart> part, Scope scope);
  void expect_recorded() const;
  void stage(std::uint64_t number);
  void copy();        // all parts; sharded parts must be staged before
  void copy_whole();  // the parts that are not sharded
  void mark();
  void recover();
  bool commit_all();
  void count_commit();
  void sync_later(const collectives::Group& group, const SyncPlan& plan, std::uint64_t commits);
  void receive();
  bool take_received();  // installs the state that has arrived; false: no state has arrived
  void end_body();
  Vote vote(Vote own);
  std::vector<ShardedPart*> sharded_parts() const;

  std::vector<Part> parts_;
  Standing standing_;
  std::uint64_t generation_ = 0;  // of run()
  // The state that recover() restores. copied: the copy, of commit `copied_commits_`. marked: the live state
  // after rewind(), of commit `standing_.commits`. torn: the copy, because apply() has not returned.
  enum class Live : std::uint8_t { copied, marked, torn } live_ = Live::copied;
  std::optional<std::uint64_t> copied_commits_;         // none: add() was called after the copy
  std::uint64_t calls_ = 0;                             // of commit_every(), since the last commit
  bool sends_later_ = false;                            // RunOptions::sync_later
  std::vector<std::function<void()>> in_transit_ = {};  // to be called before the next vote
  std::optional<collectives::Group> transit_group_;     // in which some ranks have transfers
  std::optional<std::uint64_t> receives_commits_;       // this rank is new: its state is in transit
  std::function<Vote(Vote)> votes_;                     // the agreement of the ranks; empty outside run()
  std::optional<collectives::Group> group_;             // of the latest sync(), within run()
  std::atomic<bool> leaving_ = false;
};

}  // namespace weft::elastic
