// A small VGG (Simonyan and Zisserman 2014) for images of 28 by 28 pixels, as the layers of a pipeline. Its
// convolutions take most of the time, and its linear layers have most of the parameters. For such a model,
// PipeDream replicates some stages and not others.
#pragma once

#include <weft/parallel/pipeline/layer_graph.h>

#include <torch/torch.h>

// width: channels of the first convolution. hidden: features of the linear layers.
inline weft::pipeline::LayerGraph vgg(std::int64_t width, std::int64_t hidden) {
  using namespace torch::nn;
  weft::pipeline::LayerGraph model;
  std::int64_t channels = 1;
  const auto add_conv = [&](std::int64_t out, bool halves) {
    model.add("conv" + std::to_string(model.size()), [in = channels, out, halves] {
      Sequential layer(Conv2d(Conv2dOptions(in, out, 3).padding(1).bias(false)), BatchNorm2d(out), ReLU());
      if (halves) layer->push_back(MaxPool2d(2));
      return layer;
    });
    channels = out;
  };
  add_conv(width, false);
  add_conv(width, true);  // 14 x 14
  add_conv(2 * width, false);
  add_conv(2 * width, true);  // 7 x 7
  add_conv(4 * width, false);
  add_conv(4 * width, true);  // 3 x 3
  model.add("linear1",
            [in = 9 * channels, hidden] { return Sequential(Flatten(), Linear(in, hidden), ReLU()); });
  model.add("linear2", [hidden] { return Sequential(Linear(hidden, hidden), ReLU()); });
  model.add("classes", [hidden] { return Linear(hidden, 10); });
  return model;
}
