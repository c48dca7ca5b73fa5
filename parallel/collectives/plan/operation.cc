#include <weft/parallel/collectives/plan/operation.h>

namespace weft::collectives {

std::string_view name_of(Operation operation) {
  switch (operation) {
    case Operation::all_reduce:
      return "all_reduce";
    case Operation::reduce:
      return "reduce";
    case Operation::broadcast:
      return "broadcast";
    case Operation::all_gather:
      return "all_gather";
    case Operation::all_gather_v:
      return "all_gather_v";
    case Operation::reduce_scatter:
      return "reduce_scatter";
    case Operation::reduce_scatter_v:
      return "reduce_scatter_v";
    case Operation::all_to_all:
      return "all_to_all";
    case Operation::all_to_all_v:
      return "all_to_all_v";
    case Operation::gather:
      return "gather";
    case Operation::scatter:
      return "scatter";
    case Operation::barrier:
      return "barrier";
  }
  return "?";
}

}  // namespace weft::collectives
