#include <weft/dist_optim/fused/fused_update.h>

#include <torch/torch.h>

#include <gtest/gtest.h>

#include <bit>
#include <functional>

#include "tests/support/errors.h"

namespace weft::dist_optim::fused::testing {
namespace fused_update_test {

using rpc::ErrorKind;
using test::kind_of;
using Tensors = std::vector<at::Tensor>;

// LibTorch's vector units fuse multiplications with additions, the twin does not: after `steps` steps they
// differ by no more than this many units in the last place of the parameter (2 were seen).
constexpr std::int64_t ulps = 4;
constexpr int steps = 6;

Element element(c10::ScalarType type) { return type == torch::kDouble ? Element::float64 : Element::float32; }

// Parameters between 1 and 2, from which no step takes them far: an ulp is the same for all of them.
Tensors parameters(c10::ScalarType type) {
  torch::manual_seed(11);
  Tensors made;
  for (const std::int64_t count : {1, 0, 37, 513}) made.push_back(torch::rand({count}, type) * 0.5 + 1.25);
  return made;
}
Tensors gradients(const Tensors& like, int step) {
  torch::manual_seed(100 + step);
  Tensors made;
  for (const at::Tensor& tensor : like) made.push_back(torch::randn_like(tensor));
  return made;
}
Tensors zeros(const Tensors& like) {
  Tensors made;
  for (const at::Tensor& tensor : like) made.push_back(torch::zeros_like(tensor));
  return made;
}

// How far apart in units in the last place: of positive numbers, their bits count them.
std::int64_t distance(const at::Tensor& left, const at::Tensor& right) {
  if (left.numel() == 0) return 0;
  EXPECT_TRUE((left > 0).all().item<bool>() && (right > 0).all().item<bool>());
  const auto word = left.scalar_type() == torch::kDouble ? torch::kInt64 : torch::kInt32;
  return left.view(word).sub(right.view(word)).abs().max().item<std::int64_t>();
}

// Steps of LibTorch's optimizer beside those of `step`, whose parameters it is given.
void expect_parity(c10::ScalarType type, bool maximize,
                   const std::function<std::unique_ptr<torch::optim::Optimizer>(Tensors)>& make,
                   const std::function<void(int, const Tensors&, const Tensors&)>& step) {
  const Tensors theirs = parameters(type), ours = parameters(type);
  Tensors leaves;
  for (const at::Tensor& tensor : theirs) leaves.push_back(tensor.requires_grad_());
  const auto optimizer = make(leaves);
  for (int number = 1; number <= steps; ++number) {
    const Tensors given = gradients(ours, number);
    for (std::size_t i = 0; i < leaves.size(); ++i)
      leaves[i].mutable_grad() = maximize ? given[i].neg() : given[i];  // LibTorch's C++ has no maximize
    optimizer->step();
    step(number, ours, given);
    for (std::size_t i = 0; i < leaves.size(); ++i) {
      EXPECT_LE(distance(leaves[i].detach(), ours[i]), ulps) << "piece " << i << ", step " << number;
    }
  }
  EXPECT_GT(distance(parameters(type).back(), ours.back()), 1000) << "the steps do nothing";
}

void expect_sgd_parity(c10::ScalarType type, const Sgd& options) {
  Tensors momenta;
  expect_parity(
      type, options.maximize,
      [&](Tensors leaves) {
        return std::make_unique<torch::optim::SGD>(std::move(leaves), torch::optim::SGDOptions(options.lr)
                                                                          .momentum(options.momentum)
                                                                          .dampening(options.dampening)
                                                                          .weight_decay(options.weight_decay)
                                                                          .nesterov(options.nesterov));
      },
      [&](int number, const Tensors& ours, const Tensors& given) {
        if (number == 1)
          for (const at::Tensor& tensor : ours) momenta.push_back(torch::full_like(tensor, NAN));
        std::vector<SgdPiece> pieces;
        for (std::size_t i = 0; i < ours.size(); ++i)
          pieces.push_back({ours[i].data_ptr(), given[i].data_ptr(),
                            options.momentum != 0 ? momenta[i].data_ptr() : nullptr,
                            static_cast<std::size_t>(ours[i].numel())});
        Sgd now = options;
        now.first = number == 1;
        fused::step(now, element(type), pieces);
      });
}

void expect_adam_parity(c10::ScalarType type, const Adam& options) {
  Tensors exp_avg, exp_avg_sq, max_exp_avg_sq;
  const auto set = [&](auto from) {
    from.betas({options.beta1, options.beta2}).eps(options.eps);
    from.weight_decay(options.weight_decay).amsgrad(options.amsgrad);
    return from;
  };
  expect_parity(
      type, options.maximize,
      [&](Tensors leaves) -> std::unique_ptr<torch::optim::Optimizer> {
        if (options.decoupled)
          return std::make_unique<torch::optim::AdamW>(std::move(leaves),
                                                       set(torch::optim::AdamWOptions(options.lr)));
        return std::make_unique<torch::optim::Adam>(std::move(leaves),
                                                    set(torch::optim::AdamOptions(options.lr)));
      },
      [&](int number, const Tensors& ours, const Tensors& given) {
        if (number == 1) exp_avg = zeros(ours), exp_avg_sq = zeros(ours), max_exp_avg_sq = zeros(ours);
        std::vector<AdamPiece> pieces;
        for (std::size_t i = 0; i < ours.size(); ++i)
          pieces.push_back({ours[i].data_ptr(), given[i].data_ptr(), exp_avg[i].data_ptr(),
                            exp_avg_sq[i].data_ptr(),
                            options.amsgrad ? max_exp_avg_sq[i].data_ptr() : nullptr,
                            static_cast<std::size_t>(ours[i].numel())});
        Adam now = options;
        now.step = number;
        fused::step(now, element(type), pieces);
      });
}

TEST(FusedUpdate, SgdIsLibTorchs) {
  for (const auto type : {torch::kFloat, torch::kDouble}) {
    for (const Sgd& options : std::vector<Sgd>{
             {.lr = 0.01},
             {.lr = 0.01, .weight_decay = 0.1},
             {.lr = 0.01, .momentum = 0.9},
             {.lr = 0.01, .momentum = 0.9, .dampening = 0.5, .weight_decay = 0.01},
             {.lr = 0.01, .momentum = 0.9, .nesterov = true},
             {.lr = 0.01, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true},
             {.lr = 0.01, .maximize = true},
             {.lr = 0.01, .momentum = 0.8, .weight_decay = 0.1, .nesterov = true, .maximize = true}}) {
      SCOPED_TRACE(::testing::Message()
                   << type << " momentum " << options.momentum << " dampening " << options.dampening
                   << " decay " << options.weight_decay << " nesterov " << options.nesterov << " maximize "
                   << options.maximize);
      expect_sgd_parity(type, options);
    }
  }
}

TEST(FusedUpdate, AdamIsLibTorchs) {
  for (const auto type : {torch::kFloat, torch::kDouble}) {
    for (const bool decoupled : {false, true}) {
      for (const bool amsgrad : {false, true}) {
        for (const bool maximize : {false, true}) {
          for (const double weight_decay : {0.0, 0.1}) {
            SCOPED_TRACE(::testing::Message() << type << " decoupled " << decoupled << " amsgrad " << amsgrad
                                              << " maximize " << maximize << " decay " << weight_decay);
            expect_adam_parity(type, {.lr = 0.01,
                                      .beta1 = 0.8,
                                      .beta2 = 0.97,
                                      .eps = 1e-6,
                                      .weight_decay = weight_decay,
                                      .decoupled = decoupled,
                                      .amsgrad = amsgrad,
                                      .maximize = maximize});
          }
        }
      }
    }
  }
}

TEST(FusedUpdate, AmsgradKeepsTheLargestAndNan) {
  std::vector<float> parameter{1, 1, 1}, gradient{0, 0, NAN}, average{0, 0, 0}, squares{1, 4, 1},
      most{2, 2, 2};
  const Adam options{.beta2 = 0.5, .amsgrad = true, .step = 3};
  const AdamPiece piece{parameter.data(), gradient.data(), average.data(), squares.data(), most.data(), 3};
  fused::step(options, Element::float32, std::vector{piece, piece});
  EXPECT_EQ(squares[0], 0.25f);
  EXPECT_EQ(squares[1], 1.f);
  EXPECT_EQ(most[0], 2.f);
  EXPECT_EQ(most[1], 2.f);
  EXPECT_NE(most[2], most[2]);
  gradient[2] = 0, average[2] = 0, squares[2] = 1, parameter[2] = 1;
  fused::step(options, Element::float32, std::vector{piece});
  EXPECT_NE(most[2], most[2]);
}

TEST(FusedUpdate, RefusesWhatCannotBe) {
  float value = 1;
  const auto sgd = [&](const Sgd& options, SgdPiece piece) {
    return kind_of([&] {
      fused::step(options, Element::float32, std::vector{piece});
      return 0;
    });
  };
  const auto adam = [&](const Adam& options, AdamPiece piece) {
    return kind_of([&] {
      fused::step(options, Element::float32, std::vector{piece});
      return 0;
    });
  };
  const SgdPiece plain{&value, &value, nullptr, 1};
  EXPECT_EQ(sgd({.lr = 0}, plain), std::nullopt);
  EXPECT_EQ(sgd({.lr = 0, .momentum = 0.9}, plain), ErrorKind::invalid_argument);
  EXPECT_EQ(sgd({.lr = 0, .nesterov = true}, plain), ErrorKind::invalid_argument);
  EXPECT_EQ(sgd({.lr = 0, .momentum = 0.9, .dampening = 0.1, .nesterov = true}, {&value, &value, &value, 1}),
            ErrorKind::invalid_argument);
  const AdamPiece averaged{&value, &value, &value, &value, nullptr, 1};
  EXPECT_EQ(adam({.lr = 0}, averaged), std::nullopt);
  EXPECT_EQ(adam({.lr = 0, .step = 0}, averaged), ErrorKind::invalid_argument);
  EXPECT_EQ(adam({.lr = 0, .amsgrad = true}, averaged), ErrorKind::invalid_argument);
}

}  // namespace fused_update_test
}  // namespace weft::dist_optim::fused::testing
