#include <weft/dist_optim/lbfgs/internal/options.h>
#include <weft/dist_optim/local/internal/require.h>

#include <cmath>

#include <torch/optim/lbfgs.h>

namespace weft::dist_optim {

LbfgsOptions::LbfgsOptions(const torch::optim::LBFGSOptions& from)
    : rate(from.lr()),
      max_iterations(from.max_iter()),
      max_evaluations(from.max_eval().value_or(from.max_iter() * 5 / 4)),
      tolerance_grad(from.tolerance_grad()),
      tolerance_change(from.tolerance_change()),
      history_size(static_cast<std::uint64_t>(from.history_size())),
      line_search(from.line_search_fn().has_value()) {
  require(std::isfinite(rate) && rate >= 0, "L-BFGS: the learning rate is ", rate,
          ", expected a finite number of at least 0");
  require(max_iterations > 0, "L-BFGS: max_iter is ", max_iterations, ", expected at least 1");
  require(from.history_size() > 0, "L-BFGS: history_size is ", from.history_size(), ", expected at least 1");
  require(from.line_search_fn().value_or("strong_wolfe") == "strong_wolfe",
          "L-BFGS: unknown line search '" + from.line_search_fn().value_or("") +
              "', expected strong_wolfe or none");
}

}  // namespace weft::dist_optim
