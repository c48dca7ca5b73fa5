#include <weft/dist_optim/learning_rate.h>
#include <weft/dist_optim/local/internal/require.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace weft::dist_optim {
namespace {

void check_rate(double rate) {
  require(std::isfinite(rate) && rate >= 0, "learning-rate schedule: the rate is ", rate,
          ", expected a finite number of at least 0");
}

void check_steps(std::uint64_t steps) {
  require(steps > 0, "learning-rate schedule: the number of steps is 0, expected at least 1");
}

void check_milestones(const std::vector<std::uint64_t>& milestones) {
  const auto next = std::is_sorted_until(milestones.begin(), milestones.end());
  if (next != milestones.end())
    throw rpc::Error(rpc::ErrorKind::invalid_argument,
                     "learning-rate schedule: milestone " + std::to_string(*next) + " follows " +
                         std::to_string(*(next - 1)) + ", expected ascending milestones");
}

double ratio(std::uint64_t step, std::uint64_t steps) {
  return static_cast<double>(step) / static_cast<double>(steps);
}

double half_cosine(double from, double to, double part) {
  return to + (from - to) * (1 + std::cos(std::numbers::pi * part)) / 2;
}

}  // namespace

Schedule constant(double rate) {
  check_rate(rate);
  return [rate](std::uint64_t) { return rate; };
}

Schedule linear(double rate, std::uint64_t steps, double start, double end) {
  check_rate(rate);
  check_rate(start);
  check_rate(end);
  check_steps(steps);
  return [=](std::uint64_t step) {
    return rate * (start + (end - start) * ratio(std::min(step, steps), steps));
  };
}

Schedule linear_warmup(double rate, std::uint64_t steps) {
  check_steps(steps);
  if (steps == 1) return constant(rate);
  return linear(rate, steps - 1, 1 / static_cast<double>(steps), 1);
}

Schedule exponential(double rate, double gamma) {
  check_rate(rate);
  check_rate(gamma);
  return [=](std::uint64_t step) { return rate * std::pow(gamma, static_cast<double>(step)); };
}

Schedule step_decay(double rate, std::uint64_t size, double gamma) {
  check_rate(rate);
  check_rate(gamma);
  check_steps(size);
  return [=](std::uint64_t step) { return rate * std::pow(gamma, static_cast<double>(step / size)); };
}

Schedule multi_step(double rate, std::vector<std::uint64_t> milestones, double gamma) {
  check_rate(rate);
  check_rate(gamma);
  check_milestones(milestones);
  return [=, milestones = std::move(milestones)](std::uint64_t step) {
    const auto passed = std::upper_bound(milestones.begin(), milestones.end(), step) - milestones.begin();
    return rate * std::pow(gamma, static_cast<double>(passed));
  };
}

Schedule polynomial(double rate, std::uint64_t steps, double power) {
  check_rate(rate);
  check_rate(power);
  check_steps(steps);
  return [=](std::uint64_t step) { return rate * std::pow(1 - ratio(std::min(step, steps), steps), power); };
}

Schedule cosine(double rate, std::uint64_t steps, double minimum) {
  check_rate(rate);
  check_rate(minimum);
  check_steps(steps);
  return [=](std::uint64_t step) { return half_cosine(rate, minimum, ratio(std::min(step, steps), steps)); };
}

Schedule cosine_restarts(double rate, std::uint64_t first, std::uint64_t multiplier, double minimum) {
  check_rate(rate);
  check_rate(minimum);
  check_steps(first);
  require(multiplier > 0, "cosine_restarts: the multiplier is 0, expected at least 1");
  return [=](std::uint64_t step) {
    std::uint64_t length = first;
    if (multiplier == 1) {
      step %= first;
    } else {
      for (; step >= length; length *= multiplier) step -= length;
    }
    return half_cosine(rate, minimum, ratio(step, length));
  };
}

Schedule one_cycle(const OneCycle& shape) {
  check_rate(shape.maximum);
  check_steps(shape.steps);
  require(shape.rising >= 0 && shape.rising <= 1, "one_cycle: `rising` is ", shape.rising,
          ", expected a number from 0 to 1");
  require(shape.start_divisor > 0 && shape.final_divisor > 0, "one_cycle: the divisors are ",
          shape.start_divisor, " and ", shape.final_divisor, ", expected positive numbers");
  require(!shape.three_phases || shape.rising <= 0.5, "one_cycle: `rising` is ", shape.rising,
          " with three_phases, expected at most 0.5");
  const double start = shape.maximum / shape.start_divisor, end = start / shape.final_divisor;
  const auto steps = static_cast<double>(shape.steps);
  struct Phase {
    double last, from, to;  // its last step, which need not be an integer
  };
  std::vector<Phase> phases{{shape.rising * steps - 1, start, shape.maximum}};
  if (shape.three_phases) phases.push_back({2 * shape.rising * steps - 2, shape.maximum, start});
  phases.push_back({steps - 1, shape.three_phases ? start : shape.maximum, end});
  return [phases, linear = shape.linear](std::uint64_t at) {
    const auto step = static_cast<double>(at);
    double first = 0;
    for (const Phase& phase : phases) {
      if (step > phase.last && &phase != &phases.back()) {
        first = phase.last;
        continue;
      }
      const double length = phase.last - first;
      const double part = length > 0 ? std::min(1.0, (step - first) / length) : 1;
      return linear ? phase.from + (phase.to - phase.from) * part : half_cosine(phase.from, phase.to, part);
    }
    return phases.back().to;
  };
}

Schedule sequential(std::vector<Schedule> schedules, std::vector<std::uint64_t> milestones) {
  require(!schedules.empty() && schedules.size() == milestones.size() + 1, "sequential: ", schedules.size(),
          " schedules and ", milestones.size(),
          " milestones, expected at least one schedule, and one milestone fewer than schedules");
  check_milestones(milestones);
  return [schedules = std::move(schedules), milestones = std::move(milestones)](std::uint64_t step) {
    const auto next = std::upper_bound(milestones.begin(), milestones.end(), step);
    const auto which = static_cast<std::size_t>(next - milestones.begin());
    return schedules[which](which == 0 ? step : step - milestones[which - 1]);
  };
}

Schedule chained(double rate, std::vector<Schedule> factors) {
  check_rate(rate);
  return [rate, factors = std::move(factors)](std::uint64_t step) {
    double product = rate;
    for (const Schedule& factor : factors) product *= factor(step);
    return product;
  };
}

}  // namespace weft::dist_optim
