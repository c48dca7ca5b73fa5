// What the forms of this training have in common.
#pragma once

#include <torch/torch.h>
#include <weft/parallel/collectives/group.h>

#include <vector>

#include "ddp_train/resnet.h"
#include "ddp_train/settings.h"
#include "fashion_mnist/dataset.h"
#include "fashion_mnist/loss_curve.h"

// The training images, as LibTorch's data loader reads them.
struct Images : torch::data::datasets::BatchDataset<Images, Batch> {
  explicit Images(Dataset d) : data(std::move(d)) {}
  Batch get_batch(at::ArrayRef<std::size_t> indices) override;
  torch::optional<std::size_t> size() const override { return static_cast<std::size_t>(data.size()); }
  Dataset data;
};

// Up to the highest rate in a tenth of the steps, then down along a cosine. done: part of the steps.
double rate_at(double done, double highest);
double accuracy(ResNet18& model, const Dataset& test);
// Rank 0 writes the loss curve of all ranks.
void report(const weft::collectives::Group& group, const std::vector<Point>& points,
            const Settings& settings);
