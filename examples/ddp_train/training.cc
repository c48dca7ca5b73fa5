#include "ddp_train/training.h"

#include <fmt/format.h>

#include <cmath>
#include <numbers>

Batch Images::get_batch(at::ArrayRef<std::size_t> indices) {
  const std::vector<std::int64_t> rows(indices.begin(), indices.end());
  return data.batch(at::tensor(rows, at::kLong));
}

double rate_at(double done, double highest) {
  return done < 0.1 ? highest * done / 0.1
                    : highest * (1 + std::cos(std::numbers::pi * (done - 0.1) / 0.9)) / 2;
}

double accuracy(ResNet18& model, const Dataset& test) {
  const torch::NoGradGuard no_grad;
  model.eval();
  std::int64_t right = 0;
  for (std::int64_t begin = 0; begin < test.size(); begin += 500) {
    const Batch batch = test.batch(begin, begin + 500);
    right += (model.forward(batch.images).argmax(1) == batch.labels).sum().item<std::int64_t>();
  }
  model.train();
  return static_cast<double>(right) / static_cast<double>(test.size());
}

void report(const weft::collectives::Group& group, const std::vector<Point>& points,
            const Settings& settings) {
  const auto all = group.all_gather_object(points).get();
  if (group.rank() != 0) return;
  std::vector<Point> joined;
  for (const auto& of_rank : all) joined.insert(joined.end(), of_rank.begin(), of_rank.end());
  write_loss_curve(joined, fmt::format("ResNet-18 on Fashion-MNIST, {} ranks", group.size()), settings.out);
  fmt::print("the loss curve is in {0}/loss.svg and {0}/loss.csv\n", settings.out);
}
