// The task: to learn to which of two interleaved half circles a point of the plane belongs.
#pragma once

#include <torch/torch.h>

#include <cmath>

struct Points {
  at::Tensor places;  // [N, 2]
  at::Tensor labels;  // int64 [N], 0 or 1
};

// The points are the same on all ranks, because no random numbers are used.
inline Points moons(std::int64_t n) {
  const at::Tensor number = at::arange(n), label = number.remainder(2);
  const at::Tensor angle = number.to(at::kFloat) * (M_PI / static_cast<double>(n));
  const at::Tensor side = 1 - 2 * label.to(at::kFloat);  // 1, -1
  const at::Tensor wobble = 0.1 * at::sin(37 * angle);
  return {
      at::stack({side * angle.cos() + (1 - side) / 2 + wobble, side * angle.sin() + (1 - side) / 4 + wobble},
                1),
      label};
}

// Every P-th point, beginning with point `rank`, where P is the number of ranks. The parts are equally large
// if P divides the number of points.
inline Points part_of(const Points& all, int rank, int ranks) {
  const auto part = [&](const at::Tensor& tensor) { return tensor.slice(0, rank, tensor.size(0), ranks); };
  return {part(all.places).contiguous(), part(all.labels).contiguous()};
}

// [N, 2] -> [N, 2]
inline torch::nn::Sequential make_model(std::uint64_t seed) {
  torch::manual_seed(seed);
  return torch::nn::Sequential(torch::nn::Linear(2, 32), torch::nn::Tanh(), torch::nn::Linear(32, 2));
}
