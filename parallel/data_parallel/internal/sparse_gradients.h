// The parameters of a module whose gradients are sparse.
#pragma once

#include <weft/rpc/core/export.h>

#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace weft::data_parallel {

// The names of the parameters of Embedding and EmbeddingBag with the option `sparse`.
WEFT_EXPORT std::vector<std::string> sparse_parameters(const torch::nn::Module& module);

}  // namespace weft::data_parallel
