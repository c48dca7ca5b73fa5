#include <weft/parallel/collectives/operation/internal/description.h>

#include <iterator>

namespace weft::collectives {

const Description& description_of(Operation operation) {
  using enum Description::Count;
  using enum Description::Sizes;
  using Agreed = Description::Agreed;
  // In the order of Operation.
  static constexpr Description all[] = {
      /* all_reduce */ {.outputs = one_or_more, .reduces = true, .agreed = Agreed::outputs},
      /* reduce */ {.outputs = one, .has_root = true, .reduces = true, .agreed = Agreed::outputs},
      /* broadcast */ {.outputs = one_or_more, .has_root = true, .agreed = Agreed::outputs},
      /* all_gather */
      {.outputs = one_or_more, .inputs = one_or_more, .sizes = output_of_all, .agreed = Agreed::inputs},
      /* all_gather_v */
      {.outputs = one_per_rank, .inputs = one, .sizes = own_output, .agreed = Agreed::outputs},
      /* reduce_scatter */
      {.outputs = one_or_more,
       .inputs = one_or_more,
       .reduces = true,
       .sizes = input_of_all,
       .agreed = Agreed::inputs},
      /* reduce_scatter_v */
      {.outputs = one, .inputs = one_per_rank, .reduces = true, .sizes = own_input, .agreed = Agreed::inputs},
      /* all_to_all */ {.outputs = one, .inputs = one, .sizes = equal_parts, .agreed = Agreed::inputs},
      /* all_to_all_v */ {.outputs = one_per_rank, .inputs = one_per_rank, .agreed = Agreed::unknown},
      /* gather */
      {.outputs = one_per_rank_at_root,
       .inputs = one,
       .has_root = true,
       .sizes = each_output,
       .agreed = Agreed::inputs},
      /* scatter */
      {.outputs = one,
       .inputs = one_per_rank_at_root,
       .has_root = true,
       .sizes = each_input,
       .agreed = Agreed::outputs},
      /* barrier */ {},
  };
  static_assert(std::size(all) == static_cast<std::size_t>(Operation::barrier) + 1);
  return all[static_cast<std::size_t>(operation)];
}

}  // namespace weft::collectives
