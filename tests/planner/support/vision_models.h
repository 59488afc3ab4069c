// Small convolutional models made of units.
#pragma once

#include <fsdp/unit.h>
#include <torch/torch.h>

#include <vector>

namespace fsdp::testing {

inline torch::nn::Conv2d conv3x3(int64_t in, int64_t out, int64_t stride = 1) {
  return torch::nn::Conv2d(
      torch::nn::Conv2dOptions(in, out, 3).stride(stride).padding(1).bias(false));
}

// The block of a ResNet-18: two convolutions with batch normalization. It adds its input to the
// result.
struct ResidualImpl : torch::nn::Module {
  ResidualImpl(int64_t in, int64_t out, int64_t stride)
      : first(register_module("first", conv3x3(in, out, stride))),
        second(register_module("second", conv3x3(out, out))),
        first_norm(register_module("first_norm", torch::nn::BatchNorm2d(out))),
        second_norm(register_module("second_norm", torch::nn::BatchNorm2d(out))) {
    if (in == out && stride == 1) return;
    shortcut = register_module(
        "shortcut",
        torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 1).stride(stride).bias(false)));
    shortcut_norm = register_module("shortcut_norm", torch::nn::BatchNorm2d(out));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = second_norm(second(torch::relu(first_norm(first(x)))));
    return torch::relu(y + (shortcut ? shortcut_norm(shortcut(x)) : x));
  }
  torch::nn::Conv2d first, second;
  torch::nn::BatchNorm2d first_norm, second_norm;
  torch::nn::Conv2d shortcut = nullptr;
  torch::nn::BatchNorm2d shortcut_norm = nullptr;
};
TORCH_MODULE(Residual);

struct ResNetImpl : torch::nn::Module {
  explicit ResNetImpl(int64_t width = 16, int64_t classes = 10)
      : stem(register_module(
            "stem", torch::nn::Conv2d(
                        torch::nn::Conv2dOptions(3, width, 7).stride(2).padding(3).bias(false)))),
        norm(register_module("norm", torch::nn::BatchNorm2d(width))),
        head(register_module("head", torch::nn::Linear(4 * width, classes))) {
    add(width, width, 1);
    add(width, 2 * width, 2);
    add(2 * width, 4 * width, 2);
    add(4 * width, 4 * width, 1);
  }
  at::Tensor forward(const at::Tensor& images) {
    at::Tensor x = torch::max_pool2d(torch::relu(norm(stem(images))), 3, 2, 1);
    for (auto& block : blocks) x = block(x);
    return head(torch::adaptive_avg_pool2d(x, {1, 1}).flatten(1));
  }
  torch::nn::Conv2d stem;
  torch::nn::BatchNorm2d norm;
  std::vector<Unit<Residual>> blocks;
  torch::nn::Linear head;

 private:
  void add(int64_t in, int64_t out, int64_t stride) {
    blocks.emplace_back(in, out, stride);
    register_module("block" + std::to_string(blocks.size() - 1), blocks.back());
  }
};
TORCH_MODULE(ResNet);

// Two convolutions with group normalization.
struct DoubleConvImpl : torch::nn::Module {
  DoubleConvImpl(int64_t in, int64_t out)
      : first(register_module("first", conv3x3(in, out))),
        second(register_module("second", conv3x3(out, out))),
        first_norm(register_module("first_norm", torch::nn::GroupNorm(4, out))),
        second_norm(register_module("second_norm", torch::nn::GroupNorm(4, out))) {}
  at::Tensor forward(const at::Tensor& x) {
    return torch::silu(second_norm(second(torch::silu(first_norm(first(x))))));
  }
  torch::nn::Conv2d first, second;
  torch::nn::GroupNorm first_norm, second_norm;
};
TORCH_MODULE(DoubleConv);

// A U-Net with two steps down and two steps up: one by a transposed convolution and one by
// interpolation.
struct UNetImpl : torch::nn::Module {
  explicit UNetImpl(int64_t width = 8)
      : down0(1, width),
        down1(width, 2 * width),
        middle(2 * width, 4 * width),
        up1(4 * width, 2 * width),
        up0(3 * width, width),
        rise(register_module(
            "rise", torch::nn::ConvTranspose2d(
                        torch::nn::ConvTranspose2dOptions(4 * width, 2 * width, 2).stride(2)))),
        head(register_module("head", torch::nn::Conv2d(torch::nn::Conv2dOptions(width, 2, 1)))) {
    register_module("down0", down0);
    register_module("down1", down1);
    register_module("middle", middle);
    register_module("up1", up1);
    register_module("up0", up0);
  }
  at::Tensor forward(const at::Tensor& image) {
    const at::Tensor wide = down0(image);
    const at::Tensor narrow = down1(torch::max_pool2d(wide, 2));
    at::Tensor x = rise(middle(torch::max_pool2d(narrow, 2)));
    x = up1(torch::cat({x, narrow}, 1));
    x = at::upsample_nearest2d(x, wide.sizes().slice(2));
    return head(up0(torch::cat({x, wide}, 1)));
  }
  Unit<DoubleConv> down0, down1, middle, up1, up0;
  torch::nn::ConvTranspose2d rise;
  torch::nn::Conv2d head;
};
TORCH_MODULE(UNet);

}  // namespace fsdp::testing
