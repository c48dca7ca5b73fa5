// LocalOptimizer: base of the optimizers that LibTorch's C++ API lacks (SparseAdam, RowwiseAdagrad, Adadelta,
// Adamax, Rprop). Each lists the fields of its options and of its state once, and defines how one parameter
// starts and steps; specs (optimizer_spec.h) and saved state (optimizer_state.h) are derived from the names.
//
// An optimizer's options type derives from LocalOptions, and the type of its state from LocalParamState. Both
// have a function `Fields fields()`, which lists their values.
//
// Not thread-safe, like all of LibTorch's optimizers. Errors: c10::Error, as in LibTorch.
#pragma once

#include <weft/rpc/core/export.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include <torch/optim/optimizer.h>
#include <torch/types.h>

namespace weft::dist_optim {

// One value of an optimizer's options or state.
struct Field {
  const char* name;  // as in Python's torch.optim; betas are beta1 and beta2
  std::variant<double*, bool*, std::int64_t*, at::Tensor*> value;
};
using Fields = std::vector<Field>;

[[noreturn]] WEFT_EXPORT void no_archives();  // c10::Error

template <class Options>
struct LocalOptions : torch::optim::OptimizerCloneableOptions<Options> {
  double get_lr() const override { return self().lr(); }
  void set_lr(const double rate) override { self().lr(rate); }

 private:
  Options& self() { return static_cast<Options&>(*this); }
  const Options& self() const { return static_cast<const Options&>(*this); }
};

template <class State>
struct LocalParamState : torch::optim::OptimizerCloneableParamState<State> {};

template <class Options, class State>
class LocalOptimizer : public torch::optim::Optimizer {
 public:
  LocalOptimizer(std::vector<at::Tensor> parameters, const Options& options)
      : Optimizer(std::move(parameters), std::make_unique<Options>(options)) {
    TORCH_CHECK(options.lr() >= 0, "Invalid learning rate: ", options.lr());
  }

  torch::Tensor step(LossClosure closure = nullptr) override {
    torch::Tensor loss;
    if (closure != nullptr) {
      at::AutoGradMode enable(true);
      loss = closure();
    }
    at::NoGradGuard no_grad;
    for (auto& group : param_groups_) {
      const auto& options = static_cast<const Options&>(group.options());
      for (at::Tensor& parameter : group.params()) {
        if (!parameter.grad().defined()) continue;
        auto& kept = state_[parameter.unsafeGetTensorImpl()];
        if (kept == nullptr) kept = std::make_unique<State>(begin(parameter, options));
        update(parameter, parameter.grad(), options, static_cast<State&>(*kept));
      }
    }
    return loss;
  }
  // Throw c10::Error: LibTorch's archives are not supported. The base class would write an empty archive.
  void save(torch::serialize::OutputArchive&) const override { no_archives(); }
  void load(torch::serialize::InputArchive&) override { no_archives(); }

 private:
  // The state before a parameter's first step. Default: tensors of zeros, of the parameter's shape.
  virtual State begin(const at::Tensor& parameter, const Options&) const {
    State state;
    for (const Field& field : state.fields())
      if (auto* tensor = std::get_if<at::Tensor*>(&field.value))
        **tensor = torch::zeros_like(parameter, at::MemoryFormat::Preserve);
    return state;
  }
  // One step of one parameter, under no-grad. The gradient must not be written.
  virtual void update(at::Tensor& parameter, const at::Tensor& gradient, const Options& options,
                      State& state) const = 0;
};

// Throws c10::Error for a sparse gradient, as torch.optim does. name: the optimizer's name in torch.optim.
WEFT_EXPORT void require_dense(const at::Tensor& gradient, const char* name);
// A complex tensor as its real and imaginary parts, which step as independent reals; other tensors unchanged.
WEFT_EXPORT at::Tensor real_parts(const at::Tensor& tensor);

}  // namespace weft::dist_optim
