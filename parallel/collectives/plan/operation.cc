#include <weft/parallel/collectives/plan/operation.h>

#include <cstddef>
#include <iterator>

namespace weft::collectives {

std::string_view name_of(Operation operation) {
  static constexpr std::string_view names[] = {
      "all_reduce",       "reduce",     "broadcast",    "all_gather", "all_gather_v", "reduce_scatter",
      "reduce_scatter_v", "all_to_all", "all_to_all_v", "gather",     "scatter",      "barrier"};
  static_assert(std::size(names) == static_cast<std::size_t>(Operation::barrier) + 1);
  return names[static_cast<std::size_t>(operation)];
}

}  // namespace weft::collectives
