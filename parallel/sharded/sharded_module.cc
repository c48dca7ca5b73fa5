#include <weft/parallel/sharded/sharded_module.h>

#include <weft/parallel/sharded/internal/name_patterns.h>
#include <weft/parallel/sharded/internal/unit_runner.h>
#include <weft/parallel/tensor_parallel/gradients.h>
#include <weft/parallel/training/broadcast_state.h>
#include <weft/rpc/core/error.h>

#include <c10/core/GradMode.h>
#include <torch/nn/modules/container/sequential.h>

#include <algorithm>
#include <utility>

namespace weft::sharded {

using rpc::Error;
using rpc::ErrorKind;
using torch::nn::SequentialImpl;

namespace {

constexpr auto module_owner = "FullyShardedDataParallel";

[[noreturn]] void refuse_module(const std::string& why) {
  throw Error(ErrorKind::invalid_argument, std::string(module_owner) + ": " + why);
}

// An entry of a Sequential, which takes and returns one tensor.
class ObservedEntry : public torch::nn::Module, public ObservedForward {
 public:
  explicit ObservedEntry(torch::nn::AnyModule entry) : entry_(std::move(entry)) {}
  at::Tensor forward(at::Tensor input) {
    return observed([&](const std::optional<at::ScalarType>& type) {
      return entry_.forward<at::Tensor>(type && input.is_floating_point() ? input.to(*type)
                                                                          : std::move(input));
    });
  }

 private:
  torch::nn::AnyModule entry_;
};

struct FoundBlock {
  std::string name;
  ObservedForward* block = nullptr;                    // null: an entry of `sequence`
  std::shared_ptr<SequentialImpl> sequence = nullptr;  // null: a Block
  std::size_t index = 0;
};

bool matches_any(const std::vector<std::string>& patterns, const std::string& name) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& pattern) { return matches(pattern, name); });
}

bool is_within(const std::string& name, const std::string& block) {
  return name.size() > block.size() && name.starts_with(block) && name[block.size()] == '.';
}

std::vector<FoundBlock> find_blocks(const std::shared_ptr<torch::nn::Module>& root, const Options& options) {
  const std::string& pattern = options.block;
  const auto modules = root->named_modules("", /*include_self=*/false);
  std::vector<FoundBlock> blocks;
  for (const auto& entry : modules) {
    const std::string& name = entry.key();
    auto* const observed = dynamic_cast<ObservedForward*>(entry.value().get());
    if (observed == nullptr && (pattern.empty() || !matches(pattern, name))) continue;
    if (matches_any(options.ignored, name)) {
      if (observed == nullptr) continue;
      refuse_module("the sharded::Block " + name + " is ignored, expected its module without Block");
    }
    FoundBlock block{.name = name, .block = observed};
    const auto dot = name.rfind('.');
    const auto parent = dot == std::string::npos ? root : modules[name.substr(0, dot)];
    if (const auto sequence = std::dynamic_pointer_cast<SequentialImpl>(parent);
        sequence != nullptr && observed == nullptr) {
      block.sequence = sequence;
      block.index = std::stoul(name.substr(dot == std::string::npos ? 0 : dot + 1));
    }
    if (block.block == nullptr && block.sequence == nullptr)
      refuse_module("the block " + name + " is a " + entry.value()->name() +
                    ", expected an entry of a torch::nn::Sequential or a sharded::Block");
    blocks.push_back(std::move(block));
  }
  const bool is_used = pattern.empty() || std::any_of(blocks.begin(), blocks.end(), [&](const auto& block) {
                         return matches(pattern, block.name);
                       });
  if (!is_used)
    refuse_module("no module matches the block \"" + pattern +
                  "\", expected a pattern of module names, such as \"layers.*\"");
  for (const FoundBlock& outer : blocks)
    for (const FoundBlock& inner : blocks)
      if (is_within(inner.name, outer.name))
        refuse_module("the block " + inner.name + " is within the block " + outer.name +
                      ", expected blocks side by side");
  return blocks;
}

// Whether a pattern matches the tensor or a module that contains it. A match of a module does not count if
// the tensor is in a block within this module.
bool is_ignored(const std::string& name, const std::vector<std::string>& ignored,
                const std::vector<FoundBlock>& blocks) {
  for (std::size_t end = name.find('.');; end = name.find('.', end + 1)) {
    const std::string outer = name.substr(0, end);
    if (matches_any(ignored, outer) &&
        std::none_of(blocks.begin(), blocks.end(), [&](const FoundBlock& block) {
          return is_within(block.name, outer) && is_within(name, block.name);
        }))
      return true;
    if (end == std::string::npos) return false;
  }
}

using NamedTensors = torch::OrderedDict<std::string, at::Tensor>;

// Returns the tensors that are ignored, or those that are not.
NamedTensors select(const NamedTensors& tensors, bool that_are_ignored,
                    const std::vector<std::string>& ignored, const std::vector<FoundBlock>& blocks) {
  NamedTensors selected;
  for (const auto& entry : tensors)
    if (is_ignored(entry.key(), ignored, blocks) == that_are_ignored)
      selected.insert(entry.key(), entry.value());
  return selected;
}

ShardGroups own_groups(const collectives::Group& group) {
  return {.gathers = own_group_for(group, "gathers", group.options()),
          .reductions = own_group_for(group, "reductions", group.options())};
}

collectives::Group own_replicas(const collectives::Group& replicas) {
  return own_group_for(replicas, "replicas", replicas.options());
}

std::string to_text(const Options& options) {
  const auto type_of = [](const auto& type) { return type ? c10::toString(*type) : "its own type"; };
  const auto& precision = options.mixed_precision;
  return std::string("options: reshard_after_forward ") + (options.reshard_after_forward ? "on" : "off") +
         (options.values == nullptr ? ""
          : options.initialize      ? ", values deferred"
                                    : ", values to be loaded") +
         ", parameters in " + type_of(precision.parameters) + ", reduction in " +
         type_of(precision.reduction) + to_text(options.precision_of) + ", " +
         (options.replicas ? "replicas" : "no replicas");
}

std::optional<at::ScalarType> input_type_of(const std::string& block, const Options& options) {
  const PrecisionOf* const own = first_match(options.precision_of, block);
  if (own == nullptr) return options.mixed_precision.parameters;
  return own->convert_inputs ? own->types.parameters : std::nullopt;
}

}  // namespace

// Entries of Sequentials, which are observed until this object is destroyed.
class ShardedModule::Entries {
 public:
  void observe(const FoundBlock& found, const std::weak_ptr<BlockObserver>& observer, std::size_t unit,
               std::optional<at::ScalarType> input_type) {
    torch::nn::AnyModule& entry = *(found.sequence->begin() + static_cast<std::ptrdiff_t>(found.index));
    const auto observed = std::make_shared<ObservedEntry>(entry);
    observed->observe(observer, unit, input_type);
    observed_.push_back({found.sequence, found.index, entry});
    entry = torch::nn::AnyModule(observed);
  }
  ~Entries() {
    for (auto each = observed_.rbegin(); each != observed_.rend(); ++each)
      *(each->sequence->begin() + static_cast<std::ptrdiff_t>(each->index)) = std::move(each->entry);
  }

 private:
  struct Observed {
    std::shared_ptr<SequentialImpl> sequence;
    std::size_t index;
    torch::nn::AnyModule entry;
  };
  std::vector<Observed> observed_;
};

ShardedModule::ShardedModule(const collectives::Group& group, std::shared_ptr<torch::nn::Module> module,
                             Options options)
    : options_(std::move(options)), module_(std::move(module)), entries_(std::make_unique<Entries>()) {
  std::vector<FoundBlock> blocks;
  auto found = rpc::capture([&] {
    blocks = find_blocks(module_, options_);
    for (const FoundBlock& block : blocks) blocks_.push_back(block.name);
    ignored_ = select(module_->named_parameters(), true, options_.ignored, blocks);
    for (const std::string& pattern : options_.ignored)
      if (select(module_->named_parameters(), true, {pattern}, blocks).is_empty() &&
          select(module_->named_buffers(), true, {pattern}, blocks).is_empty())
        refuse_module("no parameter or buffer matches the ignored \"" + pattern +
                      "\", expected a pattern of their names");
    for (const PrecisionOf& entry : options_.precision_of)
      if (const auto is_of = [&](const auto& each) { return matches_or_contains(entry.pattern, each.key()); };
          std::ranges::none_of(module_->named_parameters(), is_of) &&
          std::ranges::none_of(module_->named_buffers(), is_of) &&
          std::ranges::none_of(blocks_,
                               [&](const std::string& name) { return matches(entry.pattern, name); }))
        refuse_module("no parameter, buffer or block matches \"" + entry.pattern +
                      "\" of precision_of, expected a pattern of their names or of their modules'");
    return units_of(module_owner, *module_, blocks_, ignored_, options_.values.get());
  });
  ShardSetup setup{.owner = module_owner,
                   .groups = own_groups(group),
                   .options = {.compute = options_.mixed_precision.parameters,
                               .reduction = options_.mixed_precision.reduction,
                               .precision_of = options_.precision_of,
                               .in_host_memory = options_.offload,
                               .values = options_.values,
                               .initialize = options_.initialize}};
  std::vector<UnitParameters> units =
      expect_equal_units(setup.groups.gathers, module_owner, std::move(found), to_text(options_));
  if (options_.replicas)  // the ranks of a replica may be equal, and the replicas not
    units = expect_equal_units(*options_.replicas, module_owner, std::move(units), to_text(options_));
  const NamedTensors buffers = select(module_->named_buffers(), false, options_.ignored, blocks);
  NamedTensors from_rank_zero = buffers;
  for (const UnitParameters& unit : units)
    for (const auto& [name, tensor, sparse] : unit.parameters) from_rank_zero.insert(name, tensor);
  if (options_.replicas) setup.groups.replicas = own_replicas(*options_.replicas);
  std::vector<at::Tensor> whole = module_->buffers();
  for (const auto& entry : ignored_) whole.push_back(entry.value());
  materialize_whole(setup, whole);
  from_rank_zero = with_memory(from_rank_zero);
  if (setup.groups.replicas) training::broadcast_parameters(*setup.groups.replicas, from_rank_zero, 0);
  training::broadcast_parameters(setup.groups.gathers, from_rank_zero, 0);
  for (const auto& entry : buffers) {
    const at::Tensor& buffer = entry.value();
    const PrecisionOf* const own = first_match(options_.precision_of, entry.key());
    const auto type = own == nullptr ? options_.mixed_precision.buffers : own->types.buffers;
    if (type && buffer.is_floating_point()) buffer.set_data(buffer.detach().to(*type));
  }
  runner_ = UnitRunner::make(std::move(setup), std::move(units), options_.reshard_after_forward);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const auto input_type = input_type_of(blocks[i].name, options_);
    if (blocks[i].block != nullptr) {
      blocks[i].block->observe(runner_, i + 1, input_type);
    } else {
      entries_->observe(blocks[i], runner_, i + 1, input_type);
    }
  }
}

ShardedModule::~ShardedModule() {
  if (std::uncaught_exceptions() > exceptions_ && runner_ != nullptr)
    (void)rpc::capture([&] {
      units().abort("an exception has destroyed the FullyShardedDataParallel of rank " +
                    std::to_string(group().rank()));
    });
}

void ShardedModule::set_group(const collectives::Group& group,
                              const std::optional<collectives::Group>& replicas) {
  if (replicas.has_value() != options_.replicas.has_value())
    refuse_module(std::string("set_group: replicas are ") +
                  (replicas ? "given, expected none" : "missing, expected them") + " as in the Options");
  ShardGroups groups = own_groups(group);
  if (replicas) groups.replicas = own_replicas(*replicas);
  runner_->set_groups(std::move(groups));
}

const ShardedUnits& ShardedModule::units() const { return runner_->units(); }

const collectives::Group& ShardedModule::group() const { return units().setup().groups.gathers; }

std::size_t ShardedModule::bytes() const { return runner_->bytes(); }

std::vector<at::Tensor> ShardedModule::parameters() const { return named_parameters().values(); }

torch::OrderedDict<std::string, at::Tensor> ShardedModule::named_parameters() const {
  torch::OrderedDict<std::string, at::Tensor> parameters;
  for (const ParameterSlice& slice : units().slices()) parameters.insert(slice.leaf.name, slice.leaf.tensor);
  return parameters;
}

void ShardedModule::add_to(SlicedState& state, const std::string& prefix) const {
  runner_->take_replaced();
  units().add_to(state, prefix);
  add_tensors(state, ignored_, prefix, tensor_parallel::placements(*module_));
  add_aliases(state, module_->named_parameters(), prefix);
  add_tensors(state, module_->named_buffers(), prefix);
}

double ShardedModule::clip_grad_norm(double max_norm, double norm_type) {
  std::vector<tensor_parallel::GradientGroup> over{{group(), true}};
  for (const tensor_parallel::Placement& parameter : tensor_parallel::placements(*module_))
    for (const tensor_parallel::Split& split : parameter.splits)
      if (std::none_of(over.begin(), over.end(), [&](const tensor_parallel::GradientGroup& each) {
            return each.group.members() == split.group.members();
          }))
        over.push_back({split.group});
  return tensor_parallel::clip_grad_norm(units().placements(), over, max_norm, norm_type);
}

std::optional<at::ScalarType> ShardedModule::input_type() const {
  return options_.mixed_precision.parameters;
}

ShardedModule::ForwardScope::ForwardScope(const ShardedModule& module) : module_(module) {
  try {
    module_.runner_->begin_forward();
  } catch (...) {
    module_.runner_->leave_forward();
    throw;
  }
}
ShardedModule::ForwardScope::~ForwardScope() { module_.runner_->leave_forward(); }
void ShardedModule::watch(const at::Tensor& output) { runner_->watch(0, output); }
void ShardedModule::end_forward() { runner_->end_forward(); }

std::vector<std::size_t> ShardedModule::units_in(const GatherOptions& options) const {
  if (options.rank && (*options.rank < 0 || *options.rank >= group().size()))
    refuse_module("gather(): there is no rank " + std::to_string(*options.rank) + ", expected 0 to " +
                  std::to_string(group().size() - 1));
  if (options.rank && options.changes == Changes::kept)
    refuse_module("gather(): changes on one rank cannot be kept, expected Changes::lost, or all ranks");
  std::vector<bool> is_wanted(blocks_.size() + 1, options.blocks.empty());
  for (const std::string& pattern : options.blocks) {
    bool is_used = pattern.empty();
    if (is_used) is_wanted[0] = true;
    for (std::size_t i = 0; i < blocks_.size(); ++i)
      if (matches(pattern, blocks_[i])) is_used = is_wanted[i + 1] = true;
    if (!is_used)
      refuse_module("gather(): no block matches \"" + pattern +
                    "\", expected a pattern of the names in blocks()");
  }
  std::vector<std::size_t> units;
  for (std::size_t unit = 0; unit < is_wanted.size(); ++unit)
    if (is_wanted[unit]) units.push_back(unit);
  return units;
}

struct ShardedModule::Gathered::Kept {
  std::shared_ptr<UnitRunner> runner;
  UnitRunner::KeptWhole units;
};

ShardedModule::Gathered::Gathered(const ShardedModule& module, const GatherOptions& options)
    : kept_(std::make_unique<const Kept>(
          module.runner_, module.runner_->keep_whole(rpc::capture([&] { return module.units_in(options); }),
                                                     options.rank, options.changes == Changes::kept))) {}
ShardedModule::Gathered::~Gathered() { kept_->runner->release_whole(kept_->units); }

ShardedModule::NoSync::NoSync(std::shared_ptr<UnitRunner> runner)
    : runner_(std::move(runner)), before_(runner_->set_reduces(false)) {}
ShardedModule::NoSync::~NoSync() { (void)runner_->set_reduces(before_); }

}  // namespace weft::sharded
