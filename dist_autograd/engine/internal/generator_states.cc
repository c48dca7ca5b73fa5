#include <weft/dist_autograd/engine/internal/generator_states.h>

#include <weft/rpc/core/error.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/view_as_real.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <string>

namespace weft::dist_autograd {

GeneratorStates GeneratorStates::of(const std::vector<at::Tensor>& inputs,
                                    const std::vector<at::Generator>& others) {
  std::set<c10::DeviceIndex> devices;
  c10::DeviceType type = at::kCPU;
  for (const at::Tensor& input : inputs)
    if (input.defined() && !input.is_cpu())
      devices.insert(input.device().index()), type = input.device().type();
  GeneratorStates states;
  states.add(at::detail::getDefaultCPUGenerator());
  for (const c10::DeviceIndex index : devices)
    if (at::globalContext().getAcceleratorHooksInterface(type).isBuilt())
      states.add(at::globalContext().defaultGenerator(c10::Device(type, index)));
  for (const at::Generator& generator : others) states.add(generator);
  return states;
}

GeneratorStates GeneratorStates::of_these_alone(const std::vector<at::Generator>& generators) {
  GeneratorStates states;
  for (const at::Generator& generator : generators) states.add(generator);
  return states;
}

GeneratorStates GeneratorStates::now() const {
  GeneratorStates states;
  for (const auto& [generator, state] : states_) states.add(generator);
  return states;
}

void GeneratorStates::restore() const {
  for (auto [generator, state] : states_) {
    std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  }
}

bool operator==(const GeneratorStates& a, const GeneratorStates& b) {
  return std::equal(a.states_.begin(), a.states_.end(), b.states_.begin(), b.states_.end(),
                    [](const auto& x, const auto& y) { return at::equal(x.second, y.second); });
}

void GeneratorStates::add(at::Generator generator) {
  std::lock_guard lock(generator.mutex());
  states_.emplace_back(generator, generator.get_state());
}

SecondRun::SecondRun(const std::vector<at::Tensor>& tensors, const std::vector<at::Generator>& own,
                     bool restores_defaults)
    : before_(GeneratorStates::of(tensors, own)),
      restored_(restores_defaults ? before_ : GeneratorStates::of_these_alone(own)) {}

void SecondRun::note_first(const std::vector<at::Tensor>& outputs) {
  GeneratorStates now = before_.now();
  if (now == before_) return;
  after_.emplace(std::move(now));
  for (const at::Tensor& output : outputs) summaries_.push_back(summary_of(output));
}

std::vector<at::Tensor> SecondRun::run(const std::function<std::vector<at::Tensor>()>& forward) const {
  if (!after_) return forward();
  std::vector<at::Tensor> outputs;
  bool has_same_states = false;
  {
    const DrawsAgain draws_again(restored_);
    outputs = forward();
    has_same_states = after_->now() == *after_;
  }
  for (std::size_t i = 0; i < std::min(outputs.size(), summaries_.size()); ++i) {
    const Summary& first = summaries_[i];
    if (!first.sums.defined() || (has_same_states && !first.sums.is_cpu())) continue;
    const Summary second = summary_of(outputs[i]);
    const bool has_same_size = second.sums.defined() && second.sums.sizes() == first.sums.sizes();
    // Not a number, after an overflow, compares as equal.
    if (has_same_size && !(at::linalg_vector_norm(second.sums - first.sums).item<double>() >
                           first.tolerance * first.norm.item<double>()))
      continue;
    throw rpc::Error(
        rpc::ErrorKind::failed_precondition,
        "output " + std::to_string(i) +
            " of the second run of a forward differs from that of its first run, expected the same random "
            "numbers: another thread has drawn from the same generator, or the forward gives other results "
            "each time: let the forward draw from a generator of its own, and name that generator to whoever "
            "runs it again");
  }
  return outputs;
}

// If two runs drew different numbers, the sums differ by about as much as the outputs, in the Euclidean norm.
// A prime number of parts does not match the shapes of layers, whose normalizations would keep the sums of
// rows equal. The tolerance permits the rounding of kernels that add in another order each time.
SecondRun::Summary SecondRun::summary_of(const at::Tensor& output) {
  if (!output.defined() || output.layout() != at::kStrided || output.is_quantized() || output.is_meta() ||
      output.numel() == 0)
    return {};
  const at::NoGradGuard no_grad;
  const at::ScalarType given = c10::toRealValueType(output.scalar_type());
  const bool is_wide = given == at::kDouble || c10::isIntegralType(given, /*includeBool=*/true);
  const double tolerance = given == at::kDouble     ? 1e-9
                           : given == at::kFloat    ? 1e-4
                           : given == at::kHalf     ? 4e-3
                           : given == at::kBFloat16 ? 2e-2
                           : is_wide                ? 0
                                                    : 0.2;
  const at::Tensor real =
      output.is_complex() ? at::view_as_real(output.detach().resolve_conj()) : output.detach();
  const at::Tensor values = real.reshape({-1}).to(is_wide ? at::kDouble : at::kFloat);
  constexpr std::int64_t parts = 509;
  const std::int64_t rows = values.numel() / parts, rest = values.numel() - rows * parts;
  at::Tensor sums = values.narrow(0, 0, rows * parts).view({rows, parts}).sum(0);
  sums.narrow(0, 0, rest).add_(values.narrow(0, rows * parts, rest));
  return {.sums = std::move(sums), .norm = at::linalg_vector_norm(values), .tolerance = tolerance};
}

}  // namespace weft::dist_autograd
