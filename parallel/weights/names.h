// NameMap: other names of tensors, in files and modules. Thread-safe, as far as the program's own functions
// are.
#pragma once

#include <weft/rpc/core/export.h>

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace weft::weights {

// The other name of a tensor. An empty result leaves the tensor out.
using NameMap = std::function<std::string(const std::string& name)>;
// Replaces names; those that the map lacks stay.
WEFT_EXPORT NameMap exact_names(std::map<std::string, std::string> names);
// Replaces the first prefix of the list with which a name begins: {{"model.", ""}} removes "model.". Names
// without any of them stay.
WEFT_EXPORT NameMap prefixes(std::vector<std::pair<std::string, std::string>> prefixes);

}  // namespace weft::weights
