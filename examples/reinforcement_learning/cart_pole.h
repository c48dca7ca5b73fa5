// CartPole: a cart on a track is pushed left or right so that the pole on it stays upright (Barto, Sutton and
// Anderson 1983, with the limits of CartPole-v1 of OpenAI Gym). The reward of each step is 1.
#pragma once

#include <torch/torch.h>

#include <cmath>
#include <numbers>
#include <random>

class CartPole {
 public:
  explicit CartPole(std::uint64_t seed) : random_(seed) {}

  void reset() {
    std::uniform_real_distribution<double> near_the_middle(-0.05, 0.05);
    for (double* value : {&x_, &speed_, &angle_, &turning_}) *value = near_the_middle(random_);
  }

  // [4]: position, speed, angle, angular speed
  at::Tensor state() const { return at::tensor({x_, speed_, angle_, turning_}, at::kFloat); }
  bool over() const { return std::abs(x_) > 2.4 || std::abs(angle_) > 12 * std::numbers::pi / 180; }

  // Returns the reward.
  double step(bool right) {
    constexpr double gravity = 9.8, cart = 1.0, pole = 0.1, half_length = 0.5, force = 10, seconds = 0.02;
    const double sine = std::sin(angle_), cosine = std::cos(angle_);
    const double push =
        ((right ? force : -force) + pole * half_length * turning_ * turning_ * sine) / (cart + pole);
    const double angular =
        (gravity * sine - cosine * push) / (half_length * (4.0 / 3 - pole * cosine * cosine / (cart + pole)));
    const double linear = push - pole * half_length * angular * cosine / (cart + pole);
    x_ += seconds * speed_;
    speed_ += seconds * linear;
    angle_ += seconds * turning_;
    turning_ += seconds * angular;
    return 1;
  }

 private:
  double x_ = 0, speed_ = 0, angle_ = 0, turning_ = 0;
  std::mt19937_64 random_;
};
