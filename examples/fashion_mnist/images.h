// The images as a data set of LibTorch's data loader, and the accuracy of a model.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "fashion_mnist/dataset.h"

struct Images : torch::data::datasets::BatchDataset<Images, Batch> {
  explicit Images(Dataset d) : data(std::move(d)) {}
  Batch get_batch(at::ArrayRef<std::size_t> indices) override {
    const std::vector<std::int64_t> rows(indices.begin(), indices.end());
    return data.batch(at::tensor(rows, at::kLong));
  }
  torch::optional<std::size_t> size() const override { return static_cast<std::size_t>(data.size()); }
  Dataset data;
};

// The part of the images whose class the model gives the highest score.
template <class Model>
double accuracy(Model& model, const Dataset& test) {
  const torch::NoGradGuard no_grad;
  model.eval();
  std::int64_t right = 0;
  for (std::int64_t begin = 0; begin < test.size(); begin += 500) {
    const Batch batch = test.batch(begin, begin + 500);
    right += (model.forward(batch.images).argmax(1) == batch.labels).sum().template item<std::int64_t>();
  }
  model.train();
  return static_cast<double>(right) / static_cast<double>(test.size());
}
