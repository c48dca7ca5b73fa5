// State: what training must not lose when the workers change. It refers to the program's objects and keeps a
// copy of them in memory, the commit.
//
//   elastic::State state;
//   state.add("model", model).add("optimizer", optimizer).add("sampler", sampler).add("epoch", epoch);
//
// The program commits at the end of a step, on all ranks at the same steps. After a failure run() restores
// the last commit on the survivors, and gives all ranks the state of the rank with the most commits. A commit
// is also where the program learns that workers want to join or leave: it throws WorkersChanged on all ranks
// at the same step. The objects outlive the State. Not thread-safe, except leave().
//
// Gradients are not state: restore() and sync() remove those of modules.
#pragma once

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

// Thrown by commit(), commit_every() and check() on all ranks at the same step: workers join or leave. run()
// catches it; the body of run() lets it pass. It is not an rpc::Error, so that it is not taken for the
// failure of a collective.
class WEFT_EXPORT WorkersChanged : public std::runtime_error {
 public:
  WorkersChanged();
  ~WorkersChanged() override;
};

enum class Scope : std::uint8_t {
  job,   // synchronized: all ranks have the same
  rank,  // committed and restored, but each rank has its own, and a new worker keeps what it begins with
};

namespace detail {

WEFT_EXPORT std::shared_ptr<StatePart> module_part(std::shared_ptr<torch::nn::Module> module);
WEFT_EXPORT std::shared_ptr<StatePart> optimizer_part(torch::optim::Optimizer& optimizer);
WEFT_EXPORT std::shared_ptr<StatePart> sampler_part(ElasticSampler sampler);
WEFT_EXPORT std::shared_ptr<StatePart> generator_part(at::Generator generator);
WEFT_EXPORT std::shared_ptr<StatePart> tensors_part(std::vector<at::Tensor> tensors);

template <class T>
class ValuePart final : public StatePart {
 public:
  explicit ValuePart(T& live) : live_(live) {}
  std::string kind() const override { return rpc::type_text<T>(); }
  void commit() override { commit_ = live_; }
  void restore() override { live_ = commit_.value(); }
  void sync(const collectives::Group& group, int source) override {
    live_ = group.broadcast_object(live_, source).get();
  }

 private:
  T& live_;
  std::optional<T> commit_;
};

template <class T>
std::shared_ptr<StatePart> part_of(T& object) {
  if constexpr (std::is_base_of_v<torch::optim::Optimizer, T>) {
    return optimizer_part(object);
  } else if constexpr (std::is_base_of_v<ElasticSampler, T>) {
    return sampler_part(object);
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
        "weft: elastic::State expects a module, an optimizer, a sampler, a generator, tensors, or a "
        "value that can be copied and travels (WEFT_CODEC); other types need a StatePart");
    return std::make_shared<ValuePart<T>>(object);
  }
}

class StateAccess;

}  // namespace detail

class WEFT_EXPORT State {
 public:
  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  // A module (shared_ptr or holder: parameters and buffers), an optimizer of LibTorch, an ElasticSampler, a
  // generator, a tensor or a vector of tensors (their contents), a value that travels, or a
  // shared_ptr<StatePart>. Names and kinds are compared between the ranks. Throws already_exists for a name
  // that was added before.
  template <class T>
  State& add(std::string name, T& object, Scope scope = Scope::job) {
    return add_part(std::move(name), detail::part_of(object), scope);
  }

  // At the end of a step: copies all parts, and then lets the ranks agree whether workers join or leave. The
  // latter is one small collective within run(), and nothing outside of it. Throws WorkersChanged; the errors
  // of the group.
  void commit();
  // Every nth call commits, the others do nothing. All ranks count from the last commit.
  void commit_every(std::uint64_t n);
  // Lets the ranks agree as commit() does, without a copy unless workers join or leave.
  void check();

  // All parts become those of the last commit. Throws failed_precondition before the first commit.
  void restore();
  // All ranks of the group call it. All parts become those of the rank with the most commits, the lowest one
  // of several, and are committed. Returns that rank; nothing, without any copy, if all ranks have the same
  // commit already. Throws failed_precondition if the ranks have added different parts, naming the first
  // difference; the errors of the group.
  std::optional<int> sync(const collectives::Group& group);

  std::uint64_t commits() const { return standing_.commits; }  // of training, also by workers before this one
  // This worker leaves at the next commit or check(), where run() returns. Before run(): it returns at once,
  // without training. Any thread.
  void leave() { leaving_ = true; }

 private:
  friend class detail::StateAccess;  // run()

  struct Part {
    std::string name;
    std::shared_ptr<StatePart> part;
    Scope scope;
  };
  State& add_part(std::string name, std::shared_ptr<StatePart> part, Scope scope);
  void stage(std::uint64_t number);
  void copy();        // all parts, which are staged if they are split
  void copy_whole();  // those that are not split
  bool commit_all();
  bool agree_on_change();
  std::vector<SplitPart*> split_parts() const;

  std::vector<Part> parts_;
  Standing standing_;
  bool committed_ = false;
  std::uint64_t calls_ = 0;                  // of commit_every(), since the last commit
  std::function<bool()> changes_;            // the agreement of the ranks; empty outside run()
  std::optional<collectives::Group> group_;  // of the latest sync(), within run()
  std::atomic<bool> leaving_ = false;
};

}  // namespace weft::elastic
