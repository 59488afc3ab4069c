// A ResNet for small pictures, with batch normalization and residual blocks.
#pragma once

#include <torch/torch.h>

namespace ports {

namespace nn = torch::nn;

inline nn::Conv2d conv3x3(int64_t in, int64_t out, int64_t stride) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, 3).stride(stride).padding(1).bias(false));
}

struct ResidualBlockImpl : nn::Module {
  ResidualBlockImpl(int64_t in, int64_t out, int64_t stride)
      : conv1(register_module("conv1", conv3x3(in, out, stride))),
        conv2(register_module("conv2", conv3x3(out, out, 1))),
        bn1(register_module("bn1", nn::BatchNorm2d(out))),
        bn2(register_module("bn2", nn::BatchNorm2d(out))) {
    if (stride != 1 || in != out)
      downsample = register_module("downsample",
                                   nn::Sequential(conv3x3(in, out, stride), nn::BatchNorm2d(out)));
  }
  at::Tensor forward(at::Tensor x) {
    const at::Tensor changed = bn2(conv2(torch::relu(bn1(conv1(x)))));
    return torch::relu(changed + (downsample ? downsample->forward(x) : x));
  }
  nn::Conv2d conv1, conv2;
  nn::BatchNorm2d bn1, bn2;
  nn::Sequential downsample{nullptr};
};
TORCH_MODULE(ResidualBlock);

struct ResNetImpl : nn::Module {
  explicit ResNetImpl(int64_t classes)
      : conv(register_module("conv", conv3x3(3, 8, 1))),
        bn(register_module("bn", nn::BatchNorm2d(8))),
        layers(register_module("layers",
                               nn::Sequential(ResidualBlock(8, 8, 1), ResidualBlock(8, 16, 2),
                                              ResidualBlock(16, 32, 2)))),
        fc(register_module("fc", nn::Linear(32, classes))) {}
  at::Tensor forward(at::Tensor x) {
    x = layers->forward(torch::relu(bn(conv(x))));
    return fc(at::adaptive_avg_pool2d(x, {1, 1}).flatten(1));
  }
  nn::Conv2d conv;
  nn::BatchNorm2d bn;
  nn::Sequential layers;
  nn::Linear fc;
};
TORCH_MODULE(ResNet);

}  // namespace ports
