#include <weft/parallel/sharded/unit_parameters.h>

#include <weft/parallel/training/internal/agreement.h>
#include <weft/parallel/weights/deferred.h>
#include <weft/parallel/weights/internal/tensor_memory.h>
#include <weft/rpc/core/error.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace weft::sharded {

using rpc::Error;
using rpc::ErrorKind;

namespace {

std::vector<std::string> descriptions_of(const std::vector<UnitParameters>& units) {
  std::vector<std::string> descriptions;
  for (const UnitParameters& unit : units) {
    if (!unit.name.empty()) descriptions.push_back("the " + unit.name);
    for (const auto& [name, tensor, sparse] : unit.parameters) {
      descriptions.push_back(training::described("the parameter " + name, tensor));
      if (tensor.requires_grad()) descriptions.back() += ", which requires grad";
    }
  }
  return descriptions;
}

}  // namespace

// Each parameter once: in the block that has all its names, else in unit 0.
std::vector<UnitParameters> units_of(const std::string& owner, const torch::nn::Module& module,
                                     const std::vector<std::string>& blocks,
                                     const torch::OrderedDict<std::string, at::Tensor>& ignored,
                                     const weights::InitialValues* values) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorKind::invalid_argument, owner + ": " + why);
  };
  const auto placements = tensor_parallel::placements(module);
  std::vector<UnitParameters> units(1);
  for (const std::string& block : blocks) units.push_back({.name = "block " + block});
  struct Named {
    at::Tensor tensor;
    std::vector<std::string> names;
  };
  std::vector<Named> parameters;
  for (const auto& entry : module.named_parameters()) {
    if (std::any_of(ignored.begin(), ignored.end(),
                    [&](const auto& other) { return other.value().is_same(entry.value()); }))
      continue;
    const auto same = std::find_if(parameters.begin(), parameters.end(),
                                   [&](const Named& other) { return other.tensor.is_same(entry.value()); });
    same == parameters.end() ? parameters.push_back({entry.value(), {entry.key()}})
                             : same->names.push_back(entry.key());
  }
  if (parameters.empty())
    refuse(std::string("the module has no parameters") + (ignored.is_empty() ? "" : " that are not ignored") +
           ", expected at least one");
  std::map<const void*, std::string> owners;  // of storages
  const auto own = [&](const std::string& name, const at::Tensor& tensor) {
    const auto [first, is_first] = owners.emplace(tensor.storage().unsafeGetStorageImpl(), name);
    if (!is_first)
      refuse(name + " shares its memory with " + first->second +
             ", expected memory for each, or one parameter in both places");
  };
  for (const Named& each : parameters) {
    if (each.tensor.device() != parameters.front().tensor.device())
      throw Error(ErrorKind::unsupported,
                  owner + ": parameter " + each.names[0] + " is on " + each.tensor.device().str() + ", " +
                      parameters.front().names[0] + " on " + parameters.front().tensor.device().str() +
                      ", expected one device");
    if (each.tensor.layout() != at::kStrided)
      refuse("parameter " + each.names[0] + " is sparse, expected a dense one");
    if (!weights::has_memory(each.tensor) && (values == nullptr || !values->are_of(each.tensor)))
      refuse("parameter " + each.names[0] +
             " has no memory, expected a whole module that is not split over ranks, or one of "
             "weights::deferred() with its values in the options");
    if (each.tensor.numel() > 0) own(each.names[0], each.tensor);
    std::size_t unit = 0;
    for (std::size_t i = 0; i < blocks.size(); ++i)
      if (std::all_of(each.names.begin(), each.names.end(),
                      [&](const std::string& name) { return name.starts_with(blocks[i] + "."); }))
        unit = i + 1;
    units[unit].parameters.push_back({each.names.front(), each.tensor, false});
    for (const tensor_parallel::Placement& placement : placements)
      if (placement.tensor.is_same(each.tensor) && !placement.splits.empty())
        units[unit].split.push_back(placement);
  }
  std::set<const void*> seen;
  for (const auto& entry : module.named_buffers())
    if (const at::Tensor& buffer = entry.value();
        buffer.numel() > 0 && buffer.has_storage() && seen.insert(buffer.unsafeGetTensorImpl()).second)
      own(entry.key(), buffer);
  for (const auto& entry : ignored)
    if (const at::Tensor& tensor = entry.value();
        tensor.numel() > 0 && tensor.has_storage() && seen.insert(tensor.unsafeGetTensorImpl()).second)
      own(entry.key(), tensor);
  return units;
}

std::vector<UnitParameters> expect_equal_units(const collectives::Group& group, const std::string& owner,
                                               rpc::Result<std::vector<UnitParameters>> units,
                                               const std::string& properties) {
  std::vector<std::string> own;
  std::string refusal;
  try {
    if (!units.ok()) std::rethrow_exception(units.error());
    own = descriptions_of(units.value());
    own.push_back(properties);
  } catch (const std::exception& error) {
    refusal = error.what();
  }
  const auto refusals = group.all_gather_object(refusal).get();
  const auto all = group.all_gather_object(own).get();
  if (!units.ok()) std::rethrow_exception(units.error());
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (!refusals[rank].empty())
      throw Error(ErrorKind::failed_precondition, "rank " + std::to_string(rank) + ": " + refusals[rank]);
    const auto [first, other] =
        std::mismatch(all[0].begin(), all[0].end(), all[rank].begin(), all[rank].end());
    if (first == all[0].end() && other == all[rank].end()) continue;
    const auto text = [](const auto& entry, const auto& end) { return entry == end ? "no more" : *entry; };
    throw Error(ErrorKind::failed_precondition, owner + ": rank " + std::to_string(rank) + " has " +
                                                    text(other, all[rank].end()) + "; rank 0 has " +
                                                    text(first, all[0].end()));
  }
  return std::move(units).get();
}

}  // namespace weft::sharded
