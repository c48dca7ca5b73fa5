// SlicedState: the part of a training state that one rank has: slices of named tensors, and notes.
//
// A tensor may be whole on one rank, split over the ranks, or equal on several ranks: one of the equal copies
// is then saved. If the copies of the ranks may differ, set `of_first_rank`. It may be split twice: its
// columns over one group, and each of these parts over another group. Thread-safety: values.
#pragma once

#include <weft/parallel/sharded/checkpoint/runs.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace weft::sharded {

// A range of a tensor's flattened elements. With `runs`, a range of the elements of these runs, by their
// positions in the runs.
struct SlicedTensor {
  std::vector<std::int64_t> sizes;  // of the whole tensor; empty: it has no dimensions and one element
  std::int64_t begin = 0;           // the first element of the range, which has values.numel() elements
  at::Tensor values;                // one dimension; on any device
  std::optional<Runs> runs = {};    // nullopt: all elements of the tensor
  // true: of several ranks that have this range, the one with the lowest number saves it. So if these ranks
  // have several such tensors, the checkpoint has those of one rank.
  bool of_first_rank = false;
};

struct SlicedState {
  std::map<std::string, SlicedTensor> tensors;
  // For example the step, the epoch and the seed, as UTF-8. The notes of rank 0 are saved. Names must not
  // begin with "weft.".
  std::map<std::string, std::string> notes;
  // Other names of tensors, such as those of tied parameters -> the name in `tensors`. Weights have them
  // (load_weights()); checkpoints do not.
  std::map<std::string, std::string> aliases = {};
};

}  // namespace weft::sharded
