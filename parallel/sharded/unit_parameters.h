// UnitParameters: parameters that are gathered and split together. Plain functions over values.
#pragma once

#include <weft/parallel/collectives/group.h>
#include <weft/parallel/data_parallel/named_parameter.h>
#include <weft/parallel/tensor_parallel/split.h>

#include <torch/nn/module.h>
#include <torch/ordered_dict.h>

#include <cstddef>
#include <string>
#include <vector>

namespace weft::weights {
class InitialValues;
}

namespace weft::sharded {

struct UnitParameters {
  std::string name = {};  // for messages: "block layers.0"
  std::vector<data_parallel::NamedParameter> parameters = {};
  std::vector<tensor_parallel::Placement> split = {};  // those parameters that are parts over other groups
  std::size_t buffers = 0;                             // units with the same number share buffers
};

// Divides the module's parameters into units; each parameter occurs once. Unit i + 1 has the parameters that
// only the submodule blocks[i] has, and the submodule's name; unit 0 has the others. ignored: parameters that
// are in no unit, by name. owner: for error messages. invalid_argument: there are no parameters, or a
// parameter is sparse, is split already, or shares memory with another parameter or a buffer. unsupported:
// parameters on several devices. values: of parameters without memory (ShardOptions::values).
WEFT_EXPORT std::vector<UnitParameters> units_of(const std::string& owner, const torch::nn::Module& module,
                                                 const std::vector<std::string>& blocks = {},
                                                 const torch::OrderedDict<std::string, at::Tensor>& ignored =
                                                     torch::OrderedDict<std::string, at::Tensor>(),
                                                 const weights::InitialValues* values = nullptr);

// Compares the units and other properties of all ranks, and returns this rank's units. All ranks call it.
// units: the units of this rank, or the error for which it has none. If this rank has an error, that error is
// thrown. failed_precondition: the first difference, or the error of another rank.
WEFT_EXPORT std::vector<UnitParameters> expect_equal_units(const collectives::Group& group,
                                                           const std::string& owner,
                                                           rpc::Result<std::vector<UnitParameters>> units,
                                                           const std::string& properties);

}  // namespace weft::sharded
