// Operation: the collectives of Group with the same names.
#pragma once

#include <weft/rpc/core/export.h>

#include <cstdint>
#include <string_view>

namespace weft::collectives {

enum class Operation : std::uint8_t {
  all_reduce,
  reduce,
  broadcast,
  all_gather,
  all_gather_v,
  reduce_scatter,
  reduce_scatter_v,
  all_to_all,
  all_to_all_v,
  gather,
  scatter,
  barrier,
};

WEFT_EXPORT std::string_view name_of(Operation operation);  // "all_reduce", …

}  // namespace weft::collectives
