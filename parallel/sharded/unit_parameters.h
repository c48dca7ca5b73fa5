// UnitParameters: parameters that are gathered and split together. Plain functions over values.
#pragma once

#include <weft/parallel/collectives/group.h>
#include <weft/parallel/data_parallel/gradient_buckets.h>
#include <weft/parallel/tensor_parallel/split.h>

#include <torch/nn/module.h>
#include <torch/ordered_dict.h>

#include <cstddef>
#include <string>
#include <vector>

namespace weft::sharded {

struct UnitParameters {
  std::string name = {};  // for messages: "block layers.0"
  std::vector<data_parallel::NamedParameter> parameters = {};
  std::vector<tensor_parallel::Placement> split = {};  // of these: parts over other groups
  std::size_t buffers = 0;  // units with the same number use buffers of one size in turn
};

// The module's parameters, each once. Unit i + 1 has those that only the submodule blocks[i] has, and its
// name; unit 0 has the others. ignored: parameters that no unit has, by name. owner: of the units, for
// messages. invalid_argument: no parameters, sparse ones, ones that are split already, or that share memory
// with another one or a buffer. unsupported: parameters on several devices.
WEFT_EXPORT std::vector<UnitParameters> units_of(const std::string& owner, const torch::nn::Module& module,
                                                 const std::vector<std::string>& blocks = {},
                                                 const torch::OrderedDict<std::string, at::Tensor>& ignored =
                                                     torch::OrderedDict<std::string, at::Tensor>());

// On all ranks: compares the units, and other properties of the ranks. units: or why this rank has none.
// Returns those of this rank. failed_precondition: the first difference, or the error of another rank; an
// error of this rank as it is.
WEFT_EXPORT std::vector<UnitParameters> expect_equal_units(const collectives::Group& group,
                                                           const std::string& owner,
                                                           rpc::Result<std::vector<UnitParameters>> units,
                                                           const std::string& properties);

}  // namespace weft::sharded
