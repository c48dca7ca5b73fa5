// The optimizers of a State.
//
// The fields of the states of LibTorch's optimizers are known. These states are copied into memory that is
// used again, and broadcast as tensors. A program's own optimizer is saved and loaded by its archive, which
// allocates memory.
#include <weft/parallel/elastic/internal/tensor_memory.h>
#include <weft/parallel/elastic/internal/tensor_transfer.h>
#include <weft/parallel/elastic/state.h>
#include <weft/parallel/training/broadcast_state.h>
#include <weft/parallel/training/internal/optimizer_archive.h>
#include <weft/rpc/codec/struct_codec.h>

#include <ATen/Functions.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <deque>
#include <sstream>

namespace weft::elastic::detail {
namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamState;

// The fields of one parameter's state.
struct ParamFields {
  std::vector<at::Tensor*> tensors;  // may be undefined
  std::vector<std::int64_t*> counts;
  std::vector<double*> numbers = {};
  std::vector<std::deque<at::Tensor>*> lists = {};
};

ParamFields fields_of(torch::optim::SGDParamState& state) { return {{&state.momentum_buffer()}, {}}; }
ParamFields fields_of(torch::optim::AdamParamState& state) {
  return {{&state.exp_avg(), &state.exp_avg_sq(), &state.max_exp_avg_sq()}, {&state.step()}};
}
ParamFields fields_of(torch::optim::AdamWParamState& state) {
  return {{&state.exp_avg(), &state.exp_avg_sq(), &state.max_exp_avg_sq()}, {&state.step()}};
}
ParamFields fields_of(torch::optim::AdagradParamState& state) { return {{&state.sum()}, {&state.step()}}; }
ParamFields fields_of(torch::optim::RMSpropParamState& state) {
  return {{&state.square_avg(), &state.momentum_buffer(), &state.grad_avg()}, {&state.step()}};
}
ParamFields fields_of(torch::optim::LBFGSParamState& state) {
  training::drop_scratch_memory(state);
  return {{&state.d(), &state.H_diag(), &state.prev_flat_grad()},
          {&state.func_evals(), &state.n_iter()},
          {&state.t(), &state.prev_loss()},
          {&state.old_dirs(), &state.old_stps(), &state.ro()}};
}

std::vector<at::Tensor*> tensors_of(const ParamFields& fields) {
  std::vector<at::Tensor*> tensors = fields.tensors;
  for (std::deque<at::Tensor>* const list : fields.lists)
    for (at::Tensor& tensor : *list) tensors.push_back(&tensor);
  return tensors;
}

// Functions that create and read the states of one type of optimizer.
struct StateType {
  const char* name;
  std::unique_ptr<OptimizerParamState> (*make)();
  ParamFields (*fields)(OptimizerParamState&);
};

template <class ParamState>
constexpr StateType state_type(const char* name) {
  return {name, []() -> std::unique_ptr<OptimizerParamState> { return std::make_unique<ParamState>(); },
          [](OptimizerParamState& state) { return fields_of(static_cast<ParamState&>(state)); }};
}

std::optional<StateType> state_type_of(const Optimizer& optimizer) {
  using namespace torch::optim;
  if (dynamic_cast<const SGD*>(&optimizer) != nullptr) return state_type<SGDParamState>("SGD");
  if (dynamic_cast<const Adam*>(&optimizer) != nullptr) return state_type<AdamParamState>("Adam");
  if (dynamic_cast<const AdamW*>(&optimizer) != nullptr) return state_type<AdamWParamState>("AdamW");
  if (dynamic_cast<const Adagrad*>(&optimizer) != nullptr) return state_type<AdagradParamState>("Adagrad");
  if (dynamic_cast<const RMSprop*>(&optimizer) != nullptr) return state_type<RMSpropParamState>("RMSprop");
  if (dynamic_cast<const LBFGS*>(&optimizer) != nullptr) return state_type<LBFGSParamState>("LBFGS");
  return std::nullopt;
}

// The data that the source sends to the other ranks before the tensors.
struct TensorForm {
  bool defined = false;
  std::vector<std::int64_t> sizes, strides;
  int dtype = 0;
};
WEFT_CODEC(TensorForm, defined, sizes, strides, dtype)
struct ParamForm {
  bool present = false;
  std::vector<std::int64_t> counts;
  std::vector<double> numbers;
  std::vector<std::uint64_t> lists;  // how many tensors each has
  std::vector<TensorForm> tensors;
};
WEFT_CODEC(ParamForm, present, counts, numbers, lists, tensors)
struct OptimizerForm {
  std::vector<std::string> options;  // of each parameter group: its archive
  std::vector<ParamForm> parameters;
};
WEFT_CODEC(OptimizerForm, options, parameters)

std::string archive_of(const OptimizerOptions& options) {
  torch::serialize::OutputArchive archive;
  options.serialize(archive);
  std::ostringstream stream;
  archive.save_to(stream);
  return std::move(stream).str();
}

void load_options(const std::string& bytes, OptimizerOptions& options) {
  torch::serialize::InputArchive archive;
  std::istringstream stream(bytes);
  archive.load_from(stream);
  options.serialize(archive);
}

class KnownOptimizerPart final : public StatePart {
 public:
  KnownOptimizerPart(Optimizer& optimizer, StateType type) : optimizer_(optimizer), type_(type) {}

  std::string kind() const override { return std::string("optimizer ") + type_.name; }

  void commit() override {
    options_ = options();
    const auto parameters = this->parameters();
    copies_.resize(parameters.size());
    for (std::size_t i = 0; i < parameters.size(); ++i)
      copies_[i] = copy(find(parameters[i]), copies_[i].get());
  }

  void restore() override {
    set_options(options_);
    const auto parameters = this->parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      auto& states = optimizer_.state();
      auto restored = copy(i < copies_.size() ? copies_[i].get() : nullptr, find(parameters[i]));
      if (restored != nullptr) {
        states[parameters[i].unsafeGetTensorImpl()] = std::move(restored);
      } else {
        states.erase(parameters[i].unsafeGetTensorImpl());
      }
    }
  }

  // A learning rate is set between steps; all else changes in steps.
  void mark() override { marked_options_ = options(); }
  void rewind() override { set_options(marked_options_); }

  void sync(const collectives::Group& group, int source) override {
    share_form(group, source, group.rank() != source);
    const std::vector<at::Tensor> tensors = state_tensors();
    if (!tensors.empty()) training::broadcast_tensors(group, tensors, source).get();
  }
  std::function<void()> sync_later(const collectives::Group& group, const SyncPlan& plan) override {
    const bool is_new = std::any_of(plan.later.begin(), plan.later.end(),
                                    [&](const Transfer& transfer) { return transfer.to == group.rank(); });
    share_form(group, plan.source, is_new);
    return transfer_tensors(group, plan.later, state_tensors());
  }

 private:
  using Options = std::vector<std::unique_ptr<OptimizerOptions>>;  // of the parameter groups

  Options options() const {
    Options options;
    for (const auto& group : optimizer_.param_groups()) options.push_back(group.options().clone());
    return options;
  }
  void set_options(const Options& options) {
    for (std::size_t group = 0; group < options.size(); ++group)
      optimizer_.param_groups()[group].set_options(options[group]->clone());
  }
  std::vector<at::Tensor> parameters() const {
    std::vector<at::Tensor> parameters;
    for (const auto& group : optimizer_.param_groups())
      parameters.insert(parameters.end(), group.params().begin(), group.params().end());
    return parameters;
  }
  OptimizerParamState* find(const at::Tensor& parameter) const {
    const auto found = optimizer_.state().find(parameter.unsafeGetTensorImpl());
    return found == optimizer_.state().end() ? nullptr : found->second.get();
  }
  // A copy of `from`, in the memory of the tensors of `memory` as far as they fit.
  std::unique_ptr<OptimizerParamState> copy(const OptimizerParamState* from,
                                            OptimizerParamState* memory) const {
    if (from == nullptr) return nullptr;
    auto copied = from->clone();  // its tensors are those of `from`
    const auto tensors = tensors_of(type_.fields(*copied));
    const auto old = memory == nullptr ? std::vector<at::Tensor*>() : tensors_of(type_.fields(*memory));
    for (std::size_t i = 0; i < tensors.size(); ++i)
      *tensors[i] = copy_into(i < old.size() ? *old[i] : at::Tensor(), *tensors[i]);
    return copied;
  }

  std::vector<at::Tensor> state_tensors() const {
    std::vector<at::Tensor> tensors;
    for (const at::Tensor& parameter : parameters())
      if (OptimizerParamState* const state = find(parameter))
        for (const at::Tensor* tensor : tensors_of(type_.fields(*state)))
          if (tensor->defined()) tensors.push_back(*tensor);
    return tensors;
  }
  void share_form(const collectives::Group& group, int source, bool takes) {
    OptimizerForm form;
    if (group.rank() == source) form = this->form();
    form = group.broadcast_object(form, source).get();
    if (takes) take(form);
  }
  OptimizerForm form() const {
    OptimizerForm form;
    for (const auto& group : optimizer_.param_groups()) form.options.push_back(archive_of(group.options()));
    for (const at::Tensor& parameter : parameters()) {
      ParamForm& told = form.parameters.emplace_back();
      OptimizerParamState* const state = find(parameter);
      told.present = state != nullptr;
      if (state == nullptr) continue;
      const ParamFields fields = type_.fields(*state);
      for (const std::int64_t* count : fields.counts) told.counts.push_back(*count);
      for (const double* number : fields.numbers) told.numbers.push_back(*number);
      for (const auto* list : fields.lists) told.lists.push_back(list->size());
      for (const at::Tensor* tensor : tensors_of(fields)) {
        TensorForm& tensor_form = told.tensors.emplace_back();
        tensor_form.defined = tensor->defined();
        if (!tensor->defined()) continue;
        tensor_form.sizes = tensor->sizes().vec();
        tensor_form.strides = tensor->strides().vec();
        tensor_form.dtype = static_cast<int>(tensor->scalar_type());
      }
    }
    return form;
  }

  // Makes states of that form, whose tensors the broadcast fills.
  void take(const OptimizerForm& form) {
    const auto parameters = this->parameters();
    auto& groups = optimizer_.param_groups();
    if (form.options.size() != groups.size() || form.parameters.size() != parameters.size())
      throw rpc::Error(rpc::ErrorKind::failed_precondition,
                       "elastic::State: the source's optimizer has " +
                           std::to_string(form.parameters.size()) + " parameters in " +
                           std::to_string(form.options.size()) + " groups, this one " +
                           std::to_string(parameters.size()) + " in " + std::to_string(groups.size()));
    for (std::size_t group = 0; group < groups.size(); ++group)
      load_options(form.options[group], groups[group].options());
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (!form.parameters[i].present) {
        optimizer_.state().erase(parameters[i].unsafeGetTensorImpl());
        continue;
      }
      auto state = type_.make();
      const ParamFields fields = type_.fields(*state);
      const ParamForm& told = form.parameters[i];
      for (std::size_t k = 0; k < fields.counts.size(); ++k) *fields.counts[k] = told.counts.at(k);
      for (std::size_t k = 0; k < fields.numbers.size(); ++k) *fields.numbers[k] = told.numbers.at(k);
      for (std::size_t k = 0; k < fields.lists.size(); ++k) fields.lists[k]->resize(told.lists.at(k));
      const auto tensors = tensors_of(fields);
      for (std::size_t k = 0; k < tensors.size(); ++k)
        if (const TensorForm& form_of = told.tensors.at(k); form_of.defined)
          *tensors[k] = at::empty_strided(
              form_of.sizes, form_of.strides,
              parameters[i].options().dtype(static_cast<at::ScalarType>(form_of.dtype)).requires_grad(false));
      optimizer_.state()[parameters[i].unsafeGetTensorImpl()] = std::move(state);
    }
  }

  Optimizer& optimizer_;
  const StateType type_;
  Options options_, marked_options_;
  std::vector<std::unique_ptr<OptimizerParamState>> copies_;  // by parameter; null: it has no state
};

class ArchivedOptimizerPart final : public StatePart {
 public:
  explicit ArchivedOptimizerPart(Optimizer& optimizer) : optimizer_(optimizer) {}
  std::string kind() const override { return "optimizer"; }
  void commit() override { commit_ = training::archive_of(optimizer_); }
  void restore() override {
    optimizer_.state().clear();  // load() keeps states that the archive does not have
    training::load_archive(commit_, optimizer_);
  }
  void sync(const collectives::Group& group, int source) override {
    if (group.rank() == source) return training::broadcast_optimizer_state(group, optimizer_, source);
    const std::string before = training::archive_of(optimizer_);
    const auto clear = [&] {
      optimizer_.state().clear();
    };  // load() keeps states that the archive does not have
    clear();
    try {
      training::broadcast_optimizer_state(group, optimizer_, source);
    } catch (...) {
      clear();
      training::load_archive(before, optimizer_);
      throw;
    }
  }

 private:
  Optimizer& optimizer_;
  std::string commit_;
};

}  // namespace

std::shared_ptr<StatePart> optimizer_part(Optimizer& optimizer) {
  if (const auto type = state_type_of(optimizer))
    return std::make_shared<KnownOptimizerPart>(optimizer, *type);
  return std::make_shared<ArchivedOptimizerPart>(optimizer);
}

}  // namespace weft::elastic::detail
