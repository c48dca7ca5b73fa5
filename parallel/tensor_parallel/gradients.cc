#include <weft/parallel/tensor_parallel/gradients.h>

#include <weft/parallel/tensor_parallel/internal/agreement.h>
#include <weft/parallel/training/clip_gradients.h>
#include <weft/parallel/training/unscale.h>

#include <ATen/Functions.h>

#include <algorithm>
#include <limits>

namespace weft::tensor_parallel {
namespace {

using Members = std::vector<std::string>;

// Whether this rank's gradient of the parameter counts. Of all ranks with the same elements, one counts.
bool counts_here(const Placement& parameter, const std::vector<GradientGroup>& over,
                 const std::vector<Members>& members) {
  std::vector<Members> split_over;
  for (const Split& split : parameter.splits) {
    split_over.push_back(split.group.members());
    if (split.group.size() > 1 &&
        std::find(members.begin(), members.end(), split_over.back()) == members.end())
      refuse("clip_grad_norm", parameter.name + " is split over '" + split.group.name() +
                                   "', expected this group among those that the norm is reduced over");
  }
  if (parameter.counts_elsewhere) return false;
  for (std::size_t i = 0; i < over.size(); ++i)
    if (!over[i].all_differ && over[i].group.rank() != 0 &&
        std::find(split_over.begin(), split_over.end(), members[i]) == split_over.end())
      return false;
  return true;
}

}  // namespace

double clip_grad_norm(const std::vector<Placement>& parameters, const std::vector<GradientGroup>& over,
                      double max_norm, double norm_type) {
  std::vector<collectives::Group> groups;
  std::vector<Members> members;
  for (const GradientGroup& each : over) {
    groups.push_back(each.group);
    members.push_back(each.group.members());
  }
  std::vector<at::Tensor> gradients, counted;
  for (const Placement& parameter : parameters) {
    gradients.push_back(parameter.tensor.grad());
    if (counts_here(parameter, over, members)) counted.push_back(gradients.back());
  }
  return training::clip_gradients(counted, gradients, groups, max_norm, norm_type);
}

bool unscale_gradients(const std::vector<Placement>& parameters, const std::vector<collectives::Group>& over,
                       double factor) {
  if (over.empty()) refuse("unscale_gradients", "no group, expected at least one");
  std::vector<at::Tensor> gradients;
  for (const Placement& parameter : parameters) gradients.push_back(parameter.tensor.grad());
  bool finite = training::unscale_gradients(over.front(), gradients, factor);
  // In each further group, a rank contributes the result of the groups before.
  for (std::size_t i = 1; i < over.size(); ++i)
    finite = training::unscale_gradients(
        over[i], {at::full({1}, finite ? 0 : std::numeric_limits<float>::infinity(), at::kFloat)}, 1);
  return finite;
}

}  // namespace weft::tensor_parallel
