// ResNet-18 for small images (He et al. 2016): a 3x3 stem without pooling, four stages of two blocks.
#pragma once

#include <torch/torch.h>

// A norm over the images of a batch, or within each image. Within each image, a result does not depend on the
// other images.
inline torch::nn::AnyModule norm_over(std::int64_t channels, bool within_images) {
  if (within_images)
    return torch::nn::AnyModule(torch::nn::GroupNorm(torch::nn::GroupNormOptions(4, channels)));
  return torch::nn::AnyModule(torch::nn::BatchNorm2d(channels));
}

struct Block : torch::nn::Module {
  Block(std::int64_t in, std::int64_t out, std::int64_t stride, bool group_norm)
      : norm1(norm_over(out, group_norm)), norm2(norm_over(out, group_norm)) {
    using torch::nn::Conv2dOptions;
    conv1 = register_module(
        "conv1", torch::nn::Conv2d(Conv2dOptions(in, out, 3).stride(stride).padding(1).bias(false)));
    register_module("norm1", norm1.ptr());
    conv2 = register_module("conv2", torch::nn::Conv2d(Conv2dOptions(out, out, 3).padding(1).bias(false)));
    register_module("norm2", norm2.ptr());
    if (stride == 1 && in == out) return;
    shortcut = register_module(
        "shortcut",
        torch::nn::Sequential(torch::nn::Conv2d(Conv2dOptions(in, out, 1).stride(stride).bias(false)),
                              norm_over(out, group_norm)));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = norm2.forward(conv2(torch::relu(norm1.forward(conv1(x)))));
    return torch::relu(y + (shortcut ? shortcut->forward(x) : x));
  }
  torch::nn::Conv2d conv1{nullptr}, conv2{nullptr};
  torch::nn::AnyModule norm1, norm2;
  torch::nn::Sequential shortcut{nullptr};
};

struct ResNet18 : torch::nn::Module {
  // width: channels of the first stage; 64 in the paper.
  explicit ResNet18(std::int64_t classes, std::int64_t width = 64, std::int64_t colors = 1,
                    bool group_norm = false)
      : norm(norm_over(width, group_norm)) {
    stem = register_module(
        "stem", torch::nn::Conv2d(torch::nn::Conv2dOptions(colors, width, 3).padding(1).bias(false)));
    register_module("norm", norm.ptr());
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
    const at::Tensor x = stages->forward(torch::relu(norm.forward(stem(images))));
    return head(x.mean({2, 3}));
  }
  torch::nn::Conv2d stem{nullptr};
  torch::nn::AnyModule norm;
  torch::nn::Sequential stages;
  torch::nn::Linear head{nullptr};
};
