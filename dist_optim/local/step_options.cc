#include <weft/dist_optim/local/step_options.h>

#include <weft/dist_optim/local/internal/require.h>

#include <algorithm>
#include <cmath>

namespace weft::dist_optim {

void StepOptions::check() const {
  require(!loss_scale || (std::isfinite(*loss_scale) && *loss_scale > 0), "step: loss_scale is ",
          loss_scale.value_or(0), ", expected a finite positive number");
  require(!clip_value || *clip_value >= 0, "step: clip_value is ", clip_value.value_or(0),
          ", expected at least 0");
  require(!clip_norm || *clip_norm >= 0, "step: clip_norm is ", clip_norm.value_or(0),
          ", expected at least 0");
  require(!clip_value || !clip_norm,
          "step: clip_value and clip_norm are both set, expected at most one of them");
  require(norm_type > 0, "step: norm_type is ", norm_type, ", expected a positive number");
}

double combine_norms(const std::vector<double>& norms, double norm_type) {
  double largest = 0;
  for (double norm : norms) {
    if (std::isnan(norm)) return norm;
    largest = std::max(largest, norm);
  }
  if (std::isinf(norm_type) || largest == 0 || std::isinf(largest)) return largest;
  double sum = 0;  // of ratios, which do not overflow
  for (double norm : norms) sum += std::pow(norm / largest, norm_type);
  return largest * std::pow(sum, 1 / norm_type);
}

StepDecision decide(const std::vector<StepPart>& parts, const StepOptions& options, std::size_t unseen) {
  StepDecision decision;
  std::vector<bool> found(unseen);
  for (const StepPart& part : parts)
    for (const std::uint32_t pass : part.found)
      if (pass < unseen) found[pass] = true;
  for (std::uint32_t pass = 0; pass < unseen; ++pass)
    if (!found[pass]) decision.missing.push_back(pass);
  if (!decision.missing.empty()) {
    decision.action = StepDecision::Action::give_up;
    return decision;
  }
  if (std::all_of(parts.begin(), parts.end(), [](auto& part) { return part.none; })) {
    decision.action = StepDecision::Action::skip;
    return decision;
  }
  if (options.loss_scale &&
      std::any_of(parts.begin(), parts.end(), [](auto& part) { return part.nonfinite; })) {
    decision.action = StepDecision::Action::skip;
    return decision;
  }
  if (!options.clip_norm) return decision;
  std::vector<double> norms;
  for (const StepPart& part : parts) norms.push_back(part.norm);
  decision.total_norm = combine_norms(norms, options.norm_type);
  if (options.error_if_nonfinite && !std::isfinite(decision.total_norm)) {
    decision.action = StepDecision::Action::give_up;
    return decision;
  }
  // LibTorch's formula, with its 1e-6; a norm that is not a number makes every gradient one, as there.
  const double coefficient = *options.clip_norm / (decision.total_norm + 1e-6);
  decision.scale = std::isnan(coefficient) ? coefficient : std::min(coefficient, 1.0);
  return decision;
}

}  // namespace weft::dist_optim
