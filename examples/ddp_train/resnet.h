// ResNet-18 for small images (He et al. 2016): a 3x3 stem without pooling, four stages of two blocks.
#pragma once

#include <torch/torch.h>

// Over the images of a batch, or within each image: then a result does not depend on the other images.
struct Norm : torch::nn::Module {
  Norm(std::int64_t channels, bool within_images) {
    if (within_images) {
      group = register_module("group", torch::nn::GroupNorm(torch::nn::GroupNormOptions(4, channels)));
    } else {
      batch = register_module("batch", torch::nn::BatchNorm2d(channels));
    }
  }
  at::Tensor forward(const at::Tensor& x) { return group ? group(x) : batch(x); }
  torch::nn::BatchNorm2d batch{nullptr};
  torch::nn::GroupNorm group{nullptr};
};

struct Block : torch::nn::Module {
  Block(std::int64_t in, std::int64_t out, std::int64_t stride, bool group_norm) {
    using torch::nn::Conv2dOptions;
    conv1 = register_module(
        "conv1", torch::nn::Conv2d(Conv2dOptions(in, out, 3).stride(stride).padding(1).bias(false)));
    norm1 = register_module("norm1", std::make_shared<Norm>(out, group_norm));
    conv2 = register_module("conv2", torch::nn::Conv2d(Conv2dOptions(out, out, 3).padding(1).bias(false)));
    norm2 = register_module("norm2", std::make_shared<Norm>(out, group_norm));
    if (stride == 1 && in == out) return;
    shortcut = register_module(
        "shortcut",
        torch::nn::Sequential(torch::nn::Conv2d(Conv2dOptions(in, out, 1).stride(stride).bias(false)),
                              Norm(out, group_norm)));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = norm2->forward(conv2(torch::relu(norm1->forward(conv1(x)))));
    return torch::relu(y + (shortcut ? shortcut->forward(x) : x));
  }
  torch::nn::Conv2d conv1{nullptr}, conv2{nullptr};
  std::shared_ptr<Norm> norm1, norm2;
  torch::nn::Sequential shortcut{nullptr};
};

struct ResNet18 : torch::nn::Module {
  // width: channels of the first stage; 64 in the paper.
  explicit ResNet18(std::int64_t classes, std::int64_t width = 64, std::int64_t colors = 1,
                    bool group_norm = false) {
    stem = register_module(
        "stem", torch::nn::Conv2d(torch::nn::Conv2dOptions(colors, width, 3).padding(1).bias(false)));
    norm = register_module("norm", std::make_shared<Norm>(width, group_norm));
    std::int64_t in = width;
    for (int stage = 0; stage < 4; ++stage) {
      const std::int64_t out = width << stage;
      stages->push_back(std::make_shared<Block>(in, out, stage == 0 ? 1 : 2, group_norm));
      stages->push_back(std::make_shared<Block>(out, out, 1, group_norm));
      in = out;
    }
    register_module("stages", stages);
    head = register_module("head", torch::nn::Linear(in, classes));
  }
  at::Tensor forward(const at::Tensor& images) {
    const at::Tensor x = stages->forward(torch::relu(norm->forward(stem(images))));
    return head(x.mean({2, 3}));
  }
  torch::nn::Conv2d stem{nullptr};
  std::shared_ptr<Norm> norm;
  torch::nn::Sequential stages;
  torch::nn::Linear head{nullptr};
};
