// OptimizerSpec: one of LibTorch's optimizers with its options, as plain data.
//
// A trainer names the optimizer once, in LibTorch's own terms (`torch::optim::AdamOptions(1e-3)`). The spec
// is sent to every owner of parameters, which creates LibTorch's optimizer from it. It holds every option,
// including those left at their defaults: two specs are equal exactly if the two optimizers behave equally,
// and handles to one object with different specs are refused.
//
// Parameter groups: the parameters whose names begin with a group's prefix have the group's options instead
// of the spec's. The prefix must be the whole name or end before a dot: "conv" includes conv.weight, but not
// conv2.weight. If several prefixes match, the longest one applies. A slice of a parameter (slices.h) is in
// the group of the parameter.
//
// Thread-safety: a value.
#pragma once

#include <weft/rpc/core/export.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace at {
class Tensor;
}

namespace torch::optim {
class Optimizer;
struct SGDOptions;
struct AdamOptions;
struct AdamWOptions;
struct AdagradOptions;
struct RMSpropOptions;
struct LBFGSOptions;
}  // namespace torch::optim

namespace weft::dist_optim {

struct SparseAdamOptions;
struct RowwiseAdagradOptions;
struct AdadeltaOptions;
struct AdamaxOptions;
struct RpropOptions;

// The parameters whose names begin with `prefix`, and their options.
struct ParameterGroup {
  std::string prefix;
  std::map<std::string, double> options;  // only those that differ from the spec's

  friend bool operator==(const ParameterGroup&, const ParameterGroup&) = default;
};

struct WEFT_EXPORT OptimizerSpec {
  // LibTorch's class: "SGD", "Adam", "AdamW", "Adagrad" or "RMSprop"; or weft's "SparseAdam",
  // "RowwiseAdagrad", "Adadelta", "Adamax" or "Rprop".
  std::string name;
  // LibTorch's option names; betas are "beta1" and "beta2", and a flag is 0 or 1.
  std::map<std::string, double> options;
  std::vector<ParameterGroup> groups;

  OptimizerSpec() = default;

  // Implicit, so that a trainer can write LibTorch's options where a spec is expected.
  OptimizerSpec(const torch::optim::SGDOptions& from);
  OptimizerSpec(const torch::optim::AdamOptions& from);
  OptimizerSpec(const torch::optim::AdamWOptions& from);
  OptimizerSpec(const torch::optim::AdagradOptions& from);
  OptimizerSpec(const torch::optim::RMSpropOptions& from);
  OptimizerSpec(const SparseAdamOptions& from);
  OptimizerSpec(const RowwiseAdagradOptions& from);
  OptimizerSpec(const AdadeltaOptions& from);
  OptimizerSpec(const AdamaxOptions& from);
  OptimizerSpec(const RpropOptions& from);
  // LBFGS evaluates the loss several times within one step: it cannot be stepped with given gradients. Use
  // DistLBFGS.
  OptimizerSpec(const torch::optim::LBFGSOptions&) = delete;

  // This spec with one more group.
  OptimizerSpec with_group(std::string prefix, std::map<std::string, double> options) const;
  // The spec of each group by its prefix, without nested groups; the spec of all other parameters has the
  // prefix "". `invalid_argument` if a prefix is empty or occurs twice.
  std::map<std::string, OptimizerSpec> by_group() const;
  // The prefix of the group that a parameter is in.
  std::string group_of(const std::string& parameter) const;

  // Creates the optimizer over `parameters`, with `options` and without the groups. A spec may come from a
  // peer: `invalid_argument` for an unknown name, a missing or unknown option, or a value that LibTorch
  // refuses. Include <torch/optim/optimizer.h> to use the result.
  std::unique_ptr<torch::optim::Optimizer> make(std::vector<at::Tensor> parameters) const;

  // Whether a step accepts sparse (COO) gradients of parameters that are in no group. Adam, AdamW, RMSprop,
  // Adadelta, Adamax and Rprop refuse them; SGD and Adagrad refuse them with weight decay.
  bool takes_sparse_gradients() const;

  // Whether each element is stepped only from its own gradient and state, so that slices of a parameter may
  // step separately (slices.h). Not SparseAdam and RowwiseAdagrad, which step rows.
  bool is_elementwise() const;

  friend bool operator==(const OptimizerSpec&, const OptimizerSpec&) = default;
};

// "SGD(dampening=0, lr=0.1, momentum=0.9, nesterov=0, weight_decay=0)"
WEFT_EXPORT std::string to_string(const OptimizerSpec& spec);

}  // namespace weft::dist_optim
