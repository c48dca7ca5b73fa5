#include <weft/dist_autograd/engine/generator_states.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/equal.h>

#include <algorithm>
#include <mutex>
#include <set>

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

}  // namespace weft::dist_autograd
