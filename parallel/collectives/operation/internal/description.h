// Description: the properties of a collective operation, as data. They are the number of tensors, whether the
// operation has a root and a reduction, how the sizes of inputs and outputs depend on each other, and the
// shapes on which all ranks must agree.
//
// One table has the descriptions of all operations. All code that depends on the operation's arguments uses
// it: checks, signatures, layouts (collective_call.h). Constants; thread-safe.
#pragma once

#include <weft/parallel/collectives/plan/internal/layout.h>

#include <cstdint>

namespace weft::collectives {

struct Description {
  // The number of tensors in a list. one_per_rank_at_root: none on the other ranks.
  enum class Count : std::uint8_t { none, one, one_or_more, one_per_rank, one_per_rank_at_root };
  // The required relation of the numbers of elements of `outputs` and `inputs` of a CollectiveCall.
  enum class Sizes : std::uint8_t {
    any,            // no relation
    output_of_all,  // outputs[i] has the inputs[i] of all ranks, one after the other
    input_of_all,   // inputs[i] has one part for each rank, as large as outputs[i]
    equal_parts,    // input and output have the same size, with an equal part for each rank
    own_output,     // outputs[rank] is as large as the input
    own_input,      // inputs[rank] is as large as the output
    each_output,    // every output is as large as the input
    each_input,     // every input is as large as the output
  };
  // The shapes in the signature: none, those of a list, or one shape of unknown size.
  enum class Agreed : std::uint8_t { nothing, outputs, inputs, unknown };

  Count outputs = Count::none;  // without `inputs`: tensors that are input and output
  Count inputs = Count::none;
  bool has_root = false, reduces = false;  // whether a call gives a root, and a ReduceOp
  Sizes sizes = Sizes::any;
  Agreed agreed = Agreed::nothing;  // the shapes that are part of the signature
};

// The entry of the table.
WEFT_EXPORT const Description& description_of(Operation operation);

}  // namespace weft::collectives
