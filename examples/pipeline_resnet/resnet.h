// ResNet-50 (He et al. 2016) as the layers of a pipeline: the stem, 16 bottleneck blocks in four groups, and
// the classifier.
#pragma once

#include <weft/parallel/pipeline/layer_graph.h>

#include <torch/torch.h>

// For small images (28 x 28), a 3x3 convolution. For large images, the stem of the paper: a 7x7 convolution
// and a pooling.
struct Stem : torch::nn::Module {
  Stem(std::int64_t colors, std::int64_t width, bool large_images) : pools(large_images) {
    const auto options = torch::nn::Conv2dOptions(colors, width, large_images ? 7 : 3)
                             .stride(large_images ? 2 : 1)
                             .padding(large_images ? 3 : 1)
                             .bias(false);
    conv = register_module("conv", torch::nn::Conv2d(options));
    norm = register_module("norm", torch::nn::BatchNorm2d(width));
  }
  at::Tensor forward(const at::Tensor& images) {
    const at::Tensor y = torch::relu(norm(conv(images)));
    return pools ? torch::max_pool2d(y, 3, 2, 1) : y;
  }
  const bool pools;
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
};

struct Bottleneck : torch::nn::Module {
  static constexpr std::int64_t expansion = 4;  // output channels for each inner channel

  Bottleneck(std::int64_t in, std::int64_t width, std::int64_t stride) {
    using torch::nn::Conv2dOptions;
    const std::int64_t out = width * expansion;
    const auto conv = [&](const char* name, Conv2dOptions options) {
      return register_module(name, torch::nn::Conv2d(options.bias(false)));
    };
    const auto norm = [&](const char* name, std::int64_t channels) {
      return register_module(name, torch::nn::BatchNorm2d(channels));
    };
    conv1 = conv("conv1", Conv2dOptions(in, width, 1));
    norm1 = norm("norm1", width);
    conv2 = conv("conv2", Conv2dOptions(width, width, 3).stride(stride).padding(1));
    norm2 = norm("norm2", width);
    conv3 = conv("conv3", Conv2dOptions(width, out, 1));
    norm3 = norm("norm3", out);
    if (stride == 1 && in == out) return;
    shortcut_conv = conv("shortcut_conv", Conv2dOptions(in, out, 1).stride(stride));
    shortcut_norm = norm("shortcut_norm", out);
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = torch::relu(norm1(conv1(x)));
    y = norm3(conv3(torch::relu(norm2(conv2(y)))));
    return torch::relu(y + (shortcut_conv.is_empty() ? x : shortcut_norm(shortcut_conv(x))));
  }
  torch::nn::Conv2d conv1{nullptr}, conv2{nullptr}, conv3{nullptr}, shortcut_conv{nullptr};
  torch::nn::BatchNorm2d norm1{nullptr}, norm2{nullptr}, norm3{nullptr}, shortcut_norm{nullptr};
};

struct Classifier : torch::nn::Module {
  Classifier(std::int64_t in, std::int64_t classes) {
    linear = register_module("linear", torch::nn::Linear(in, classes));
  }
  at::Tensor forward(const at::Tensor& x) { return linear(x.mean({2, 3})); }
  torch::nn::Linear linear{nullptr};
};

// width: channels of the first group; 64 in the paper.
inline weft::pipeline::LayerGraph resnet50(std::int64_t classes, std::int64_t width, std::int64_t colors = 1,
                                           bool large_images = false) {
  weft::pipeline::LayerGraph model;
  model.add("stem", [=] { return std::make_shared<Stem>(colors, width, large_images); });
  std::int64_t in = width;
  const std::int64_t blocks[] = {3, 4, 6, 3};
  for (std::int64_t group = 0; group < 4; ++group) {
    const std::int64_t channels = width << group;
    for (std::int64_t block = 0; block < blocks[group]; ++block) {
      const std::int64_t stride = group > 0 && block == 0 ? 2 : 1;
      model.add("group" + std::to_string(group) + "_block" + std::to_string(block),
                [=] { return std::make_shared<Bottleneck>(in, channels, stride); });
      in = channels * Bottleneck::expansion;
    }
  }
  model.add("classifier", [=] { return std::make_shared<Classifier>(in, classes); });
  return model;
}
