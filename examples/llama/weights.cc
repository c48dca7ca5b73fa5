#include "llama/weights.h"

#include <fmt/format.h>
#include <weft/parallel/weights/sink.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <string>

using namespace weft;

namespace {

// Calls `visit` for each range of elements of the file that a part has: its name, its elements, its place.
using Visit = std::function<void(const std::string&, const at::Tensor&, const weights::Slice&)>;
void for_each_range(const sharded::SlicedState& state, const Visit& visit) {
  for (const auto& [name, part] : state.tensors) {
    const auto elements =
        std::accumulate(part.sizes.begin(), part.sizes.end(), std::int64_t{1}, std::multiplies<>());
    const sharded::Runs runs = part.runs.value_or(sharded::Runs::all(elements));
    const std::int64_t end = part.begin + part.values.numel();
    for (std::int64_t at = part.begin, count = 0; at < end; at += count) {
      count = std::min(end - at, runs.length - at % runs.length);
      const std::int64_t element = runs.element(at);
      visit(name, part.values.narrow(0, at - part.begin, count),
            weights::Slice::flat(element, element + count));
    }
  }
}

}  // namespace

weights::TensorForms tensors_in(const weights::Source& source, const Config& config) {
  weights::TensorForms forms;
  for (const auto& [name, form] : source.tensors()) {
    const bool computed = name.ends_with("rotary_emb.inv_freq") || (config.tied && name == "lm_head.weight");
    if (!computed) forms[name] = {form.dtype, form.sizes};
  }
  const std::int64_t expected = 9 * config.layers + (config.tied ? 2 : 3);
  if (std::ssize(forms) != expected)
    throw std::runtime_error(fmt::format("{} has {} tensors: expected {}, those of {} layers",
                                         source.description(), forms.size(), expected, config.layers));
  return forms;
}

void read_weights(const sharded::SlicedState& state, const weights::Source& source) {
  for (const auto& [name, part] : state.tensors) {
    const weights::TensorForm& form = source.form(name);
    if (form.sizes != part.sizes)
      throw std::runtime_error(fmt::format("{}: {} is {}: expected {}", source.description(), name,
                                           weights::to_text(form),
                                           weights::to_text({form.dtype, part.sizes})));
  }
  for_each_range(state, [&](const std::string& name, const at::Tensor& values, const weights::Slice& slice) {
    source.read(name, values, slice, /*convert=*/true);
  });
}

void write_weights(const collectives::Group& world, const sharded::SlicedState& state,
                   const weights::TensorForms& forms, const std::filesystem::path& folder) {
  const auto sink =
      weights::create_sink(folder / "model.safetensors", {.rank = world.rank(), .ranks = world.size()});
  const std::map<std::string, std::string> notes{{"format", "pt"}};  // transformers expects it
  if (world.rank() == 0) sink->declare(forms, notes);
  world.barrier().get();
  if (world.rank() != 0) sink->declare(forms, notes);
  for_each_range(state, [&](const std::string& name, const at::Tensor& values, const weights::Slice& slice) {
    sink->write(name, values, slice, /*convert=*/true);
  });
  if (world.rank() != 0) sink->finish();
  world.barrier().get();
  if (world.rank() == 0) sink->finish();
}
