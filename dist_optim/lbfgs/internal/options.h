// LbfgsOptions: torch::optim::LBFGSOptions, checked, as plain data. Thread-safety: a value.
#pragma once

#include <weft/rpc/core/export.h>

#include <cstdint>

namespace torch::optim {
struct LBFGSOptions;
}

namespace weft::dist_optim {

struct WEFT_EXPORT LbfgsOptions {
  // `invalid_argument`: an option is out of range.
  explicit LbfgsOptions(const torch::optim::LBFGSOptions& from);

  double rate;                                   // the learning rate
  std::int64_t max_iterations, max_evaluations;  // of a step, checked between line searches
  double tolerance_grad, tolerance_change;       // as in LBFGSOptions
  std::uint64_t history_size;                    // pairs of vectors
  bool line_search;                              // true: strong Wolfe, LibTorch's only line search
};

}  // namespace weft::dist_optim
