#include <weft/parallel/sharded/training_state.h>

#include <weft/rpc/core/error.h>

#include <ATen/ops/zeros_like.h>
#include <c10/util/accumulate.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <sstream>
#include <utility>

namespace weft::sharded {
namespace {

constexpr const char *rate_note = "learning_rate/", *name_note = "name";

std::string text_of_rate(double rate) {
  char text[64];
  return {text, std::to_chars(text, text + sizeof(text), rate).ptr};
}

double rate_in(const std::string& note, const std::string& text) {
  double rate = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rate);
  if (error != std::errc() || end != text.data() + text.size())
    throw rpc::Error(rpc::ErrorKind::invalid_argument,
                     "the note " + note + " is \"" + text + "\", expected a learning rate");
  return rate;
}

// A field of a slice as the elements of the whole parameter's field; a count has one element.
SlicedTensor sliced(const ParameterSlice& slice, const at::Tensor& field) {
  if (field.dim() == 0) return {{}, 0, field.reshape({1})};
  return slice_of_whole(slice.parameter, slice.sizes, slice.begin, field.flatten(), slice.splits);
}

std::map<std::string, const ParameterSlice*> by_leaf(const std::vector<ParameterSlice>& slices) {
  std::map<std::string, const ParameterSlice*> leaves;
  for (const ParameterSlice& slice : slices) leaves[slice.leaf.name] = &slice;
  return leaves;
}

}  // namespace

void add_tensors(SlicedState& to, const torch::OrderedDict<std::string, at::Tensor>& tensors,
                 const std::string& prefix, const std::vector<tensor_parallel::Placement>& placements,
                 bool equal) {
  std::set<const void*> added;
  for (const auto& entry : tensors) {
    const at::Tensor& tensor = entry.value();
    if (tensor.numel() == 0 || !added.insert(tensor.unsafeGetTensorImpl()).second) continue;
    const at::Tensor values = tensor.detach();
    if (!values.is_contiguous())
      throw rpc::Error(rpc::ErrorKind::invalid_argument,
                       "the tensor " + entry.key() + " is not contiguous, expected a contiguous one");
    const auto placement = std::find_if(placements.begin(), placements.end(),
                                        [&](const auto& each) { return each.tensor.is_same(tensor); });
    SlicedTensor& slice = to.tensors[prefix + entry.key()] = slice_of_whole(
        entry.key(), values.sizes().vec(), 0, values.view({-1}),
        placement == placements.end() ? std::vector<tensor_parallel::Split>() : placement->splits);
    slice.of_first_rank = !equal;
  }
  add_aliases(to, tensors, prefix);
}

void add_aliases(SlicedState& to, const torch::OrderedDict<std::string, at::Tensor>& tensors,
                 const std::string& prefix) {
  std::map<const void*, std::vector<std::string>> names;
  for (const auto& entry : tensors)
    names[entry.value().unsafeGetTensorImpl()].push_back(prefix + entry.key());
  for (const auto& [tensor, all] : names) {
    const auto name =
        std::find_if(all.begin(), all.end(), [&](const auto& each) { return to.tensors.contains(each); });
    for (const std::string& other : all)
      if (name != all.end() && other != *name) to.aliases[other] = *name;
  }
}

// This rank has `length` of each `block` slices along the dimension; a slice has `inner` elements.
SlicedTensor slice_of_whole(const std::string& name, std::vector<std::int64_t> sizes, std::int64_t begin,
                            at::Tensor values, const std::vector<tensor_parallel::Split>& splits) {
  if (splits.empty()) return {std::move(sizes), begin, std::move(values)};
  if (splits.size() > 1)
    throw rpc::Error(rpc::ErrorKind::unsupported,
                     "the parameter " + name + " is split over " + std::to_string(splits.size()) +
                         " groups, expected one: a checkpoint has parts of one dimension");
  const tensor_parallel::Split& split = splits.front();
  const auto dim = static_cast<std::size_t>(split.dim);
  const std::int64_t inner = c10::multiply_integers(sizes.begin() + split.dim + 1, sizes.end()),
                     block = split.size / split.blocks;
  sizes.at(dim) = split.size;
  const Runs runs{split.begin() * inner, split.length() * inner, block * inner};
  if (runs.distance == c10::multiply_integers(sizes))  // one run is a range
    return {std::move(sizes), runs.first + begin, std::move(values)};
  if (runs.length == runs.distance) return {std::move(sizes), begin, std::move(values)};
  return {std::move(sizes), begin, std::move(values), runs};
}

void add_module(SlicedState& to, const torch::nn::Module& module, const std::string& prefix) {
  add_tensors(to, module.named_parameters(), prefix, tensor_parallel::placements(module), true);
  add_tensors(to, module.named_buffers(), prefix);
}

std::vector<ParameterSlice> slices_of(const torch::nn::Module& module) {
  std::vector<ParameterSlice> slices;
  for (const tensor_parallel::Placement& each : tensor_parallel::placements(module))
    slices.push_back({each.name,
                      each.tensor.sizes().vec(),
                      0,
                      each.tensor.numel(),
                      {each.name, each.tensor},
                      each.splits});
  return slices;
}

void expect_groups(const dist_optim::OptimizerSpec& spec, const std::vector<std::string>& parameters) {
  for (const dist_optim::ParameterGroup& group : spec.groups)
    if (std::none_of(parameters.begin(), parameters.end(),
                     [&](const std::string& name) { return spec.group_of(name) == group.prefix; }))
      throw rpc::Error(rpc::ErrorKind::invalid_argument,
                       "the parameter group \"" + group.prefix +
                           "\" has no parameter, expected the name of a module or a parameter" +
                           (parameters.empty() ? "" : ", for example " + parameters.front()));
}

// The sampler reads and writes archives.
void add_sampler(SlicedState& to, const training::DistributedSampler& sampler, const std::string& prefix) {
  torch::serialize::OutputArchive saved;
  sampler.save(saved);
  std::stringstream stream;
  saved.save_to(stream);
  torch::serialize::InputArchive archive;
  archive.load_from(stream);
  for (const std::string& key : archive.keys()) {
    at::Tensor value;
    archive.read(key, value);
    to.tensors[prefix + key] = {{}, 0, value.reshape({1})};
  }
}

void take_sampler(const SlicedState& from, training::DistributedSampler& sampler, const std::string& prefix) {
  torch::serialize::OutputArchive archive;
  for (auto found = from.tensors.lower_bound(prefix);
       found != from.tensors.end() && found->first.starts_with(prefix); ++found)
    archive.write(found->first.substr(prefix.size()), found->second.values.reshape({}));
  std::stringstream stream;
  archive.save_to(stream);
  torch::serialize::InputArchive loaded;
  loaded.load_from(stream);
  sampler.load(loaded);
}

void add_optimizer(SlicedState& to, const dist_optim::OptimizerState& state,
                   const std::vector<ParameterSlice>& slices, const std::string& prefix) {
  const auto leaves = by_leaf(slices);
  for (const auto& [name, tensor] : state.tensors) {
    const auto slash = name.rfind('/');
    const ParameterSlice& slice = *leaves.at(name.substr(0, slash));
    to.tensors[prefix + slice.parameter + name.substr(slash)] = sliced(slice, tensor);
  }
  to.notes[prefix + name_note] = state.optimizer;
  for (const auto& [group, rate] : state.learning_rates)
    to.notes[prefix + rate_note + group] = text_of_rate(rate);
}

// Finds the fields of the state by one step of the optimizer with zero gradients. Slices without a state in
// the checkpoint, such as those of frozen parameters, need no memory.
void add_wanted_optimizer(SlicedState& to, const dist_optim::OptimizerSpec& spec,
                          const std::vector<ParameterSlice>& slices, const std::vector<std::string>& names,
                          const std::string& prefix) {
  const std::set<std::string> known(names.begin(), names.end());
  std::vector<dist_optim::Parameter> copies;
  dist_optim::Gradients zeros;
  for (const ParameterSlice& slice : slices) {
    const std::string of_parameter = prefix + slice.parameter + "/";
    if (const auto first = known.lower_bound(of_parameter);
        first == known.end() || !first->starts_with(of_parameter))
      continue;
    const at::Tensor zero = at::zeros_like(slice.leaf.tensor.detach());
    zeros[copies.size()] = zero;
    copies.push_back({slice.leaf.name, zero.clone().set_requires_grad(true), slice.leaf.slice});
  }
  dist_optim::ShadowLeaves leaves(std::move(copies), spec);
  leaves.step(zeros);
  SlicedState all;
  add_optimizer(all, leaves.state(), slices, prefix);
  for (auto& [name, tensor] : all.tensors)
    if (known.contains(name)) to.tensors[name] = std::move(tensor);
}

dist_optim::OptimizerState optimizer_in(const SlicedState& from, const std::string& optimizer,
                                        const std::vector<ParameterSlice>& slices,
                                        const std::string& prefix) {
  const auto name = from.notes.find(prefix + name_note);
  if (name == from.notes.end() || name->second != optimizer)
    throw rpc::Error(
        rpc::ErrorKind::invalid_argument,
        name == from.notes.end()
            ? "the state of an optimizer without the note " + prefix + name_note +
                  ", expected the notes that load() returns: state.notes = checkpoints.load(...)"
            : "the state of an optimizer is that of " + name->second + ", expected " + optimizer);
  dist_optim::OptimizerState state{.optimizer = optimizer, .learning_rates = {}, .tensors = {}};
  for (const ParameterSlice& slice : slices) {
    const std::string of_parameter = prefix + slice.parameter + "/";
    for (auto found = from.tensors.lower_bound(of_parameter);
         found != from.tensors.end() && found->first.starts_with(of_parameter); ++found) {
      const auto& [name, tensor] = *found;
      const bool is_count = tensor.sizes.empty() && tensor.values.scalar_type() == at::kLong;
      state.tensors[slice.leaf.name + name.substr(of_parameter.size() - 1)] =
          is_count ? tensor.values.reshape({}) : tensor.values.view_as(slice.leaf.tensor);
    }
  }
  const std::string rates = prefix + rate_note;
  for (const auto& [name, text] : from.notes)
    if (name.starts_with(rates)) state.learning_rates[name.substr(rates.size())] = rate_in(name, text);
  return state;
}

}  // namespace weft::sharded
