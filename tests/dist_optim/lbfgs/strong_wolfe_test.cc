// StrongWolfe and the line search of torch::optim::LBFGS evaluate functions of one number at the same points.
#include <weft/dist_optim/lbfgs/internal/strong_wolfe.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <functional>

namespace weft::dist_optim::lbfgs_strong_wolfe_test {
namespace {

struct Function {
  std::string name;
  std::function<at::Tensor(const at::Tensor&)> at;
  double start, rate;
};
void PrintTo(const Function& function, std::ostream* out) { *out << function.name; }

struct Loss {
  double value, slope;
};
Loss evaluate(const Function& function, double x) {
  const at::Tensor t = torch::tensor({x}, at::kDouble).requires_grad_();
  const at::Tensor value = function.at(t).sum();
  value.backward();
  return {value.item<double>(), t.grad().item<double>()};
}

// Returns the points at which the first step of LBFGS evaluates the function, and the end point of the step.
std::pair<std::vector<double>, double> torch_trials(const Function& function) {
  at::Tensor x = torch::tensor({function.start}, at::kDouble).requires_grad_();
  torch::optim::LBFGS lbfgs(
      std::vector<at::Tensor>{x},
      torch::optim::LBFGSOptions(function.rate).max_iter(1).line_search_fn("strong_wolfe"));
  std::vector<double> trials;
  lbfgs.step([&] {
    trials.push_back(x.item<double>());
    lbfgs.zero_grad();
    at::Tensor value = function.at(x).sum();
    value.backward();
    return value;
  });
  return {trials, x.item<double>()};
}

// Returns whether the search ended with an earlier trial than the last.
bool expect_as_torch(const Function& function) {
  SCOPED_TRACE(function.name);
  const auto [want, end] = torch_trials(function);
  const Loss start = evaluate(function, function.start);
  const double d = -start.slope;
  StrongWolfe search(std::min(1., 1 / std::abs(d)) * function.rate, start.value, start.slope * d,
                     std::abs(d));
  // The rounding is that of LibTorch: at a kink, the last bit is significant.
  const auto place = [&](double t) {
    return at::add(torch::tensor({function.start}, at::kDouble), torch::tensor({d}, at::kDouble), t)
        .item<double>();
  };
  std::vector<double> trials{function.start};
  while (!search.done()) {
    trials.push_back(place(search.trial()));
    const auto kept = search.candidates();
    const Loss here = evaluate(function, trials.back());
    search.evaluated(here.value, here.slope * d);
    // The chosen trial was kept, is the current one, or is the start.
    if (search.done() && search.best().number != 0 && search.best().number != search.evaluations()) {
      EXPECT_NE(std::find(kept.begin(), kept.end(), search.best().number), kept.end());
    }
  }
  EXPECT_EQ(trials.size(), want.size());
  if (trials.size() != want.size()) return false;
  for (std::size_t i = 0; i < trials.size(); ++i)
    EXPECT_NEAR(trials[i], want[i], 1e-9 * (1 + std::abs(want[i]))) << i;
  const double best = place(search.best().t);
  EXPECT_NEAR(best, end, 1e-9 * (1 + std::abs(end)));
  EXPECT_EQ(search.evaluations(), trials.size() - 1);
  return search.best().number != 0 && search.best().number != search.evaluations();
}

class StrongWolfeTrials : public testing::TestWithParam<Function> {};

TEST_P(StrongWolfeTrials, EqualThoseOfLibTorch) { expect_as_torch(GetParam()); }

INSTANTIATE_TEST_SUITE_P(
    Functions, StrongWolfeTrials,
    // The bracket ends the search; the maximum of trials ends it; the loss is not a number.
    testing::Values(Function{"Kink", [](auto& x) { return at::abs(x) + 0.01 * x; }, 0.7, 1},
                    Function{"Bottomless", [](auto& x) { return -x; }, 0, 1},
                    Function{"NotANumber", [](auto& x) { return at::log(x); }, 1, 2}),
    [](const auto& info) { return info.param.name; });

// Waves on a slope, in a bowl, and with a kink: they produce every kind of bracket.
TEST(StrongWolfeWaves, EqualThoseOfLibTorch) {
  int earlier = 0;
  for (int i = 0; i < 400; ++i) {
    const double frequency = 0.5 + 0.37 * (i % 20), slope = 0.3 * (i % 7 - 3), bowl = 0.02 * (i % 3);
    const double kink = i % 4 == 0 ? 2 : 0;
    earlier +=
        expect_as_torch({"wave " + std::to_string(i),
                         [=](const at::Tensor& x) {
                           return at::sin(frequency * x) + slope * x + bowl * x * x + kink * at::abs(x - 1.3);
                         },
                         0.1 * (i % 13), 1 + 0.5 * (i % 11)});
  }
  EXPECT_GT(earlier, 0);
}

}  // namespace
}  // namespace weft::dist_optim::lbfgs_strong_wolfe_test
