// A kernel for all operations, record(), runs instead of the usual kernels while a RecordingScope exists. It
// classifies an operation by its schema:
//
//   composed of others           runs; they are recorded
//   on tensors with memory only  runs
//   a view                       runs: it needs no elements
//   in place                     is recorded, as a step
//   any other                    runs on meta tensors, for the shapes of the results, and is recorded
//
// A step refers to tensors by their storages and geometry, so views need no steps.
#include <weft/parallel/weights/deferred.h>

#include <weft/parallel/weights/internal/tensor_memory.h>
#include <weft/parallel/weights/module.h>
#include <weft/rpc/core/error.h>
#include <weft/rpc/core/mutex.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>
#include <map>
#include <optional>
#include <unordered_map>
#include <unordered_set>

namespace weft::weights {
namespace {

using c10::IValue;
using Stack = torch::jit::Stack;
using StorageImpl = c10::StorageImpl;

const std::string reason =
    "it has no memory, because weights::deferred() has constructed its module: give the module to a "
    "FullyShardedDataParallel, or call InitialValues::materialize()";

StorageImpl* storage_of(const at::Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl(); }

// Returns the value with f(tensor) for each defined tensor in it.
template <class F>
IValue map_tensors(const IValue& value, F f) {
  const auto mapped = [&](const at::Tensor& tensor) { return tensor.defined() ? f(tensor) : tensor; };
  if (value.isTensor()) return mapped(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& each : value.toTensorVector()) list.push_back(mapped(each));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& each : value.toOptionalTensorVector())
      list.push_back(each ? std::optional(mapped(*each)) : std::nullopt);
    return list;
  }
  return value;
}

std::vector<at::Tensor> tensors_in(const IValue& value) {
  std::vector<at::Tensor> tensors;
  map_tensors(value, [&](const at::Tensor& tensor) {
    tensors.push_back(tensor);
    return tensor;
  });
  return tensors;
}

bool writes(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

at::Tensor state_of_default_generator() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

std::string text_of(const at::Tensor& tensor) { return c10::str(tensor.scalar_type(), tensor.sizes()); }

bool is_generator(const c10::Argument& argument) { return argument.name() == "generator"; }

}  // namespace

struct InitialValues::Recording {
  struct Step {
    c10::OperatorHandle operation;
    std::vector<IValue> arguments;         // tensors without memory, or copies of those with memory
    std::vector<at::Tensor> results = {};  // new tensors, in their order
    bool draws = false;                    // random numbers
  };

  mutable rpc::Mutex mutex;  // guards what follows after deferred() has returned
  std::vector<Step> steps;
  std::unordered_set<const StorageImpl*> storages;  // of tensors in `steps`, which keep them alive
  std::unordered_map<const c10::GeneratorImpl*, at::Generator> generators;  // as they were at first
  at::Tensor random_state = state_of_default_generator();

  // Also of tensors without elements.
  bool is_without_memory(const at::Tensor& tensor) const {
    return tensor.defined() && tensor.has_storage() && storages.contains(storage_of(tensor)) &&
           storage_of(tensor)->_mutable_data_ptr_no_checks().get() == nullptr;
  }
  // The tensor as it is now.
  at::Tensor kept(const at::Tensor& tensor) const {
    if (!is_without_memory(tensor)) return tensor.clone();
    return at::Tensor(tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(
        c10::VariableVersion(0), /*allow_tensor_metadata_change=*/true));
  }
  at::Tensor make(const at::Tensor& form, const c10::Device& device) {
    const at::TensorOptions options = at::TensorOptions(form.dtype()).device(device);
    at::Tensor tensor = without_memory(options, form.sizes(), form.strides(), reason);
    storages.insert(storage_of(tensor));
    return tensor;
  }
  void compute(const std::vector<at::Tensor>& wanted,
               const std::function<void(std::size_t, const at::Tensor&)>& take, bool draws) const;
  // The same arguments of an operation, with their values so far.
  Stack with_memory(const std::vector<IValue>& arguments) const;
  void record(const c10::OperatorHandle& operation, Stack& stack);
  void record_new(const c10::OperatorHandle& operation, Stack& stack, Step step);
  // The results that these arguments give: meta tensors, or tensors with memory. Only their shapes are valid.
  Stack shapes_of_results(const c10::OperatorHandle& operation, const std::vector<IValue>& arguments,
                          std::optional<c10::Device>& device) const;
  // Operations resize an `out` argument to the size of their result.
  void resize_outputs(const c10::OperatorHandle& operation, const Stack& stack);
};

namespace {

using Step = InitialValues::Recording::Step;

template <class F>
void for_each_tensor(const Step& step, F f) {
  for (const IValue& each : step.arguments)
    for (const at::Tensor& tensor : tensors_in(each)) f(tensor);
  for (const at::Tensor& each : step.results) f(each);
}

// Of tensors without memory that the step creates or writes.
template <class F>
void for_each_made(const Step& step, F f) {
  for (std::size_t i = 0; i < step.arguments.size(); ++i)
    if (writes(step.operation.schema().arguments()[i]))
      for (const at::Tensor& tensor : tensors_in(step.arguments[i])) f(tensor);
  for (const at::Tensor& each : step.results) f(each);
}

thread_local InitialValues::Recording* recording_now = nullptr;

[[noreturn]] void refuse_operation(const c10::OperatorHandle& operation, const std::string& why) {
  throw rpc::Error(rpc::ErrorKind::unsupported,
                   "weights::deferred: " + toString(operation.operator_name()) + " " + why +
                       ", which cannot be recorded: call it under a NotDeferred, or before deferred()");
}

void record_operation(const c10::OperatorHandle& operation, c10::DispatchKeySet keys, Stack* stack) {
  const auto below =
      keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::DeferredInit);
  // randn() and others draw by an operation that takes a generator.
  const bool is_composed = operation.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) ||
                           (operation.hasTag(at::Tag::nondeterministic_seeded) &&
                            operation.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd));
  if (recording_now == nullptr || is_composed) return operation.redispatchBoxed(below, stack);
  const c10::impl::ExcludeDispatchKeyGuard runs(c10::DispatchKey::DeferredInit);
  const c10::FunctionSchema& schema = operation.schema();
  bool has_tensors = false, has_deferred = false;
  for (const IValue& argument : torch::jit::last(*stack, schema.arguments().size()))
    for (const at::Tensor& tensor : tensors_in(argument)) {
      has_tensors = true;
      has_deferred |= recording_now->is_without_memory(tensor);
    }
  const auto& returns = schema.returns();
  const bool makes_tensors = std::any_of(returns.begin(), returns.end(), [](const c10::Argument& each) {
    return each.type()->isSubtypeOf(*c10::TensorType::get());
  });
  const bool is_in_place = std::any_of(schema.arguments().begin(), schema.arguments().end(), writes);
  const bool is_view = operation.hasTag(at::Tag::inplace_view) ||
                       (!is_in_place && !returns.empty() &&
                        std::all_of(returns.begin(), returns.end(),
                                    [](const c10::Argument& each) { return each.alias_info() != nullptr; }));
  const bool is_factory = !has_tensors && makes_tensors;
  if (is_view || (!has_deferred && !is_factory)) return operation.redispatchBoxed(below, stack);
  recording_now->record(operation, *stack);
}

TORCH_LIBRARY_IMPL(_, DeferredInit, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&record_operation>());
}

InitialValues::Recording& begin_recording(InitialValues& to) {
  if (recording_now != nullptr)
    throw rpc::Error(rpc::ErrorKind::failed_precondition,
                     "weights::deferred: called within a deferred(), expected one at a time");
  return to.recording();
}

}  // namespace

void InitialValues::Recording::record(const c10::OperatorHandle& operation, Stack& stack) {
  const c10::FunctionSchema& schema = operation.schema();
  resize_outputs(operation, stack);
  Step step{
      .operation = operation, .arguments = {}, .draws = operation.hasTag(at::Tag::nondeterministic_seeded)};
  for (const IValue& argument : torch::jit::last(stack, schema.arguments().size())) {
    step.arguments.push_back(map_tensors(argument, [&](const at::Tensor& tensor) { return kept(tensor); }));
    if (argument.isGenerator() && argument.toGenerator().defined() &&
        argument.toGenerator() != at::detail::getDefaultCPUGenerator())
      generators.try_emplace(argument.toGenerator().unsafeGetGeneratorImpl(), argument.toGenerator().clone());
  }
  if (step.draws && std::none_of(schema.arguments().begin(), schema.arguments().end(), is_generator))
    refuse_operation(operation, "draws random numbers and takes no generator");
  if (std::none_of(schema.arguments().begin(), schema.arguments().end(), writes))
    return record_new(operation, stack, std::move(step));
  const std::vector<IValue> arguments = torch::jit::pop(stack, schema.arguments().size());
  std::vector<IValue> written;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (!writes(schema.arguments()[i])) continue;
    for (const at::Tensor& tensor : tensors_in(arguments[i]))
      if (!is_without_memory(tensor)) refuse_operation(operation, "writes values into a tensor with memory");
    written.push_back(arguments[i]);
  }
  if (schema.returns().size() > written.size()) refuse_operation(operation, "has results of two kinds");
  // The results of an operation in place are the tensors that it has written, in their order.
  for (std::size_t i = 0; i < schema.returns().size(); ++i) stack.push_back(written[i]);
  steps.push_back(std::move(step));
}

void InitialValues::Recording::resize_outputs(const c10::OperatorHandle& operation, const Stack& stack) {
  const c10::FunctionSchema& schema = operation.schema();
  const auto given = torch::jit::last(stack, schema.arguments().size());
  std::vector<at::Tensor> outputs;
  for (std::size_t i = 0; i < given.size(); ++i)
    if (schema.arguments()[i].kwarg_only() && writes(schema.arguments()[i]))
      for (const at::Tensor& tensor : tensors_in(given[i])) outputs.push_back(tensor);
  if (outputs.empty()) return;
  std::vector<IValue> arguments;
  for (const IValue& argument : given)
    arguments.push_back(map_tensors(argument, [&](const at::Tensor& tensor) { return kept(tensor); }));
  std::optional<c10::Device> device;
  auto output = outputs.begin();
  for (const IValue& result : shapes_of_results(operation, arguments, device))
    for (const at::Tensor& form : tensors_in(result)) {
      if (output == outputs.end()) return;
      const at::Tensor& tensor = *output++;
      if (tensor.sizes() == form.sizes() || !is_without_memory(tensor)) continue;
      const auto empty = c10::Dispatcher::singleton().findSchemaOrThrow("aten::empty_strided", "");
      Stack made{form.sizes(), form.strides(), tensor.scalar_type(), IValue(), tensor.device(), IValue()};
      record(empty, made);
      tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(made.front().toTensor().storage());
      tensor.unsafeGetTensorImpl()->set_storage_offset(0);
      tensor.unsafeGetTensorImpl()->set_sizes_and_strides(form.sizes(), form.strides());
    }
}

Stack InitialValues::Recording::shapes_of_results(const c10::OperatorHandle& operation,
                                                  const std::vector<IValue>& arguments,
                                                  std::optional<c10::Device>& device) const {
  const c10::FunctionSchema& schema = operation.schema();
  Stack on_meta;
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    const std::string& name = schema.arguments()[i].name();
    IValue value = map_tensors(arguments[i], [&](const at::Tensor& tensor) {
      if (!device) device = tensor.device();
      return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
    });
    if (name == "device") {
      if (value.isDevice()) device = value.toDevice();
      value = c10::Device(at::kMeta);
    } else if (name == "pin_memory" || name == "generator") {
      value = IValue();
    }
    on_meta.push_back(std::move(value));
  }
  try {
    const at::AutoDispatchBelowADInplaceOrView without_history;
    operation.callBoxed(on_meta);
  } catch (const std::exception&) {
    // The operation needs elements, or does not know meta tensors.
    on_meta = with_memory(arguments);
    for (std::size_t i = 0; i < on_meta.size(); ++i)
      if (is_generator(schema.arguments()[i])) on_meta[i] = at::detail::createCPUGenerator();
    operation.callBoxed(on_meta);
  }
  return on_meta;
}

void InitialValues::Recording::record_new(const c10::OperatorHandle& operation, Stack& stack, Step step) {
  const c10::FunctionSchema& schema = operation.schema();
  std::optional<c10::Device> device;
  const Stack results = shapes_of_results(operation, step.arguments, device);
  torch::jit::drop(stack, schema.arguments().size());
  for (const IValue& result : results)
    stack.push_back(map_tensors(result, [&](const at::Tensor& form) {
      const at::Tensor tensor = make(form, device.value_or(at::kCPU));
      step.results.push_back(kept(tensor));
      return tensor;
    }));
  // The default dtype may be another one when a factory is computed.
  const bool has_tensors = std::any_of(step.arguments.begin(), step.arguments.end(),
                                       [](const IValue& each) { return !tensors_in(each).empty(); });
  for (std::size_t i = 0; i < step.arguments.size() && !has_tensors && !step.results.empty(); ++i)
    if (schema.arguments()[i].name() == "dtype" && step.arguments[i].isNone())
      step.arguments[i] = step.results.front().scalar_type();
  steps.push_back(std::move(step));
}

Stack InitialValues::Recording::with_memory(const std::vector<IValue>& arguments) const {
  Stack values;
  for (const IValue& argument : arguments) {
    values.push_back(map_tensors(argument, [&](const at::Tensor& tensor) {
      if (!is_without_memory(tensor)) return tensor;
      at::Tensor real;
      compute({tensor}, [&](std::size_t, const at::Tensor& computed) { real = computed; }, true);
      return real;
    }));
  }
  return values;
}

void InitialValues::Recording::compute(const std::vector<at::Tensor>& wanted,
                                       const std::function<void(std::size_t, const at::Tensor&)>& take,
                                       bool draws) const {
  const at::NoGradGuard no_history;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  std::unordered_map<const StorageImpl*, std::vector<std::size_t>> wanted_of;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (!is_without_memory(wanted[i]))
      throw rpc::Error(rpc::ErrorKind::invalid_argument,
                       "weights::InitialValues: tensor " + std::to_string(i) +
                           " was not constructed by this deferred(), or has memory");
    wanted_of[storage_of(wanted[i])].push_back(i);
  }

  // Backwards: the steps that the wanted tensors need, and the last one for each storage.
  std::unordered_map<const StorageImpl*, std::size_t> last;
  std::vector<bool> needed(steps.size());
  bool drawn_later = false;
  for (std::size_t i = steps.size(); i-- > 0;) {
    const Step& step = steps[i];
    bool makes_needed = false;
    for_each_made(step, [&](const at::Tensor& tensor) {
      const StorageImpl* const storage = storage_of(tensor);
      makes_needed |= last.contains(storage) || wanted_of.contains(storage);
    });
    needed[i] = makes_needed || (step.draws && draws && drawn_later);
    if (!needed[i]) continue;
    drawn_later |= step.draws;
    for_each_tensor(step, [&](const at::Tensor& tensor) { last.emplace(storage_of(tensor), i); });
  }

  std::unordered_map<const StorageImpl*, c10::Storage> memory;
  std::unordered_map<const c10::GeneratorImpl*, at::Generator> drawn_from;
  for (const auto& [original, state] : generators) drawn_from.emplace(original, state.clone());
  const auto real = [&](const at::Tensor& tensor) {
    const auto found = tensor.has_storage() ? memory.find(storage_of(tensor)) : memory.end();
    if (found == memory.end()) return tensor;
    const at::Tensor with_memory =
        at::empty({0}, tensor.options())
            .set_(found->second, tensor.storage_offset(), tensor.sizes(), tensor.strides());
    with_memory._set_conj(tensor.is_conj());
    with_memory._set_neg(tensor.is_neg());
    return with_memory;
  };
  at::Generator generator_of_all = at::detail::createCPUGenerator();
  generator_of_all.set_state(random_state);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (!needed[i]) continue;
    const Step& step = steps[i];
    Stack stack;
    bool on_cpu = true;
    for (std::size_t j = 0; j < step.arguments.size(); ++j) {
      const IValue& argument = step.arguments[j];
      for (const at::Tensor& tensor : tensors_in(argument)) on_cpu &= tensor.is_cpu();
      if (!is_generator(step.operation.schema().arguments()[j])) {
        stack.push_back(map_tensors(argument, real));
      } else if (const auto own = argument.isGenerator()
                                      ? drawn_from.find(argument.toGenerator().unsafeGetGeneratorImpl())
                                      : drawn_from.end();
                 own != drawn_from.end()) {
        stack.emplace_back(own->second);
      } else {
        stack.push_back(on_cpu ? IValue(generator_of_all) : argument);
      }
    }
    step.operation.callBoxed(stack);
    auto result = step.results.begin();
    if (result != step.results.end())
      for (const IValue& value : stack)
        for (at::Tensor& values : tensors_in(value)) {
          const at::Tensor& form = *result++;
          if (values.sizes() != form.sizes() || values.scalar_type() != form.scalar_type())
            throw rpc::Error(rpc::ErrorKind::failed_precondition,
                             "weights::InitialValues: " + toString(step.operation.operator_name()) +
                                 " gives " + text_of(values) + ", expected " + text_of(form) +
                                 " as in deferred(): keep the default dtype");
          values = values.resolve_conj().resolve_neg();
          if (values.strides() != form.strides() || values.storage_offset() != 0)
            values = at::empty_strided(form.sizes(), form.strides(), values.options()).copy_(values);
          memory[storage_of(form)] = values.storage();
        }
    stack.clear();
    for_each_tensor(step, [&](const at::Tensor& tensor) {
      const StorageImpl* const storage = storage_of(tensor);
      if (last.at(storage) != i || !memory.contains(storage)) return;
      if (const auto found = wanted_of.find(storage); found != wanted_of.end())
        for (const std::size_t each : found->second) take(each, real(wanted[each]));
      memory.erase(storage);
    });
  }
}

InitialValues::InitialValues() : recording_(std::make_unique<Recording>()) {}
InitialValues::~InitialValues() = default;

bool InitialValues::are_of(const at::Tensor& tensor) const { return recording_->is_without_memory(tensor); }

at::Tensor InitialValues::random_state() const {
  const rpc::MutexLock lock(recording_->mutex);
  return recording_->random_state.clone();
}

void InitialValues::set_random_state(const at::Tensor& state) {
  const rpc::MutexLock lock(recording_->mutex);
  recording_->random_state = state.clone();
}

void InitialValues::compute(const std::vector<at::Tensor>& wanted,
                            const std::function<void(std::size_t, const at::Tensor&)>& take,
                            bool draws) const {
  const rpc::MutexLock lock(recording_->mutex);
  recording_->compute(wanted, take, draws);
}

void InitialValues::materialize(torch::nn::Module& module, bool initialize) const {
  std::vector<at::Tensor> all;
  for (const auto& [name, tensor] : tensors_of(module)) all.push_back(tensor);
  materialize(all, initialize);
}

void InitialValues::materialize(const std::vector<at::Tensor>& tensors, bool initialize) const {
  std::vector<at::Tensor> wanted;  // all elements of each storage
  std::unordered_set<const StorageImpl*> seen;
  for (const at::Tensor& tensor : tensors) {
    if (!are_of(tensor) || !seen.insert(storage_of(tensor)).second) continue;
    const auto elements = static_cast<std::int64_t>(tensor.storage().nbytes() / tensor.element_size());
    wanted.push_back(recording_->kept(tensor.detach()));
    wanted.back().unsafeGetTensorImpl()->set_storage_offset(0);
    wanted.back().unsafeGetTensorImpl()->set_sizes_contiguous({elements});
  }
  const auto unspecified = [](const at::Tensor& tensor) {
    // A storage without bytes has a pointer, too, so that it is not deferred.
    return at::empty({std::max<std::int64_t>(tensor.numel(), 1)}, tensor.options());
  };
  if (initialize)
    return compute(wanted, [&](std::size_t i, const at::Tensor& values) {
      set_memory(wanted[i], values.numel() > 0 ? values : unspecified(values));
    });
  for (const at::Tensor& each : wanted) set_memory(each, unspecified(each));
}

RecordingScope::RecordingScope(InitialValues& to)
    : guard_((recording_now = &begin_recording(to), c10::DispatchKey::DeferredInit)) {}
RecordingScope::~RecordingScope() { recording_now = nullptr; }

NotDeferred::NotDeferred() : guard_(c10::DispatchKey::DeferredInit) {}

}  // namespace weft::weights
