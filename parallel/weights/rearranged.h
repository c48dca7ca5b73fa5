// rearranged(): a source whose tensors are made of those of another one: transposed, joined, or split.
//
//   // GPT-2's linear layers have transposed weights, and one for queries, keys and values.
//   const auto source = weights::rearranged(weights::open_source("gpt2"), {
//       {"query.weight", {.parts = {{"c_attn.weight", weights::Slice{{{1, 0, 768}}}}}, .transposed = true}},
//       {"gate_up.weight", {.parts = {{"gate.weight"}, {"up.weight"}}}},     // joined along dimension 0
//   });
//   weights::load_into(*model, *source);
#pragma once

#include <weft/parallel/weights/source.h>
#include <weft/rpc/core/export.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace weft::weights {

// A tensor that is made of slices of tensors of a file.
struct Arrangement {
  // A slice of a tensor of the file.
  struct Part {
    std::string name;  // in the file
    Slice slice = {};  // not flattened; empty: the whole tensor
  };
  std::vector<Part> parts;  // at least one; of equal dtypes, and of equal sizes except along `dim`
  std::int64_t dim = 0;     // the parts are consecutive along this dimension
  // true: the first two dimensions of each part are exchanged before it is joined.
  bool transposed = false;
};

// The tensors of `source`, without those that are used by an arrangement, and those that are arranged. read()
// reads the elements that it needs, and view() returns a copy of an arranged tensor. Thread-safe, as the
// source is. not_found: the source has no tensor of this name. invalid_argument, which names the new tensor:
// its parts do not fit together, a slice is not in its tensor, or the source has another tensor of its name.
WEFT_EXPORT std::shared_ptr<Source> rearranged(std::shared_ptr<const Source> source,
                                               std::map<std::string, Arrangement> arrangements);

}  // namespace weft::weights
