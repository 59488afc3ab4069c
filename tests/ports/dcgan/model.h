// A generator and a discriminator for pictures of shape 1 x 16 x 16.
#pragma once

#include <torch/torch.h>

namespace ports {

namespace nn = torch::nn;

inline constexpr int64_t kNoise = 12;

struct GeneratorImpl : nn::Module {
  GeneratorImpl()
      : conv1(register_module("conv1", up(kNoise, 32, 4, 1, 0))),
        conv2(register_module("conv2", up(32, 16, 4, 2, 1))),
        conv3(register_module("conv3", up(16, 1, 4, 2, 1))),
        norm1(register_module("norm1", nn::BatchNorm2d(32))),
        norm2(register_module("norm2", nn::BatchNorm2d(16))) {}
  at::Tensor forward(at::Tensor z) {
    z = torch::relu(norm1(conv1(z)));
    z = torch::relu(norm2(conv2(z)));
    return torch::tanh(conv3(z));
  }
  static nn::ConvTranspose2d up(int64_t in, int64_t out, int64_t size, int64_t stride,
                                int64_t pad) {
    return nn::ConvTranspose2d(
        nn::ConvTranspose2dOptions(in, out, size).stride(stride).padding(pad).bias(false));
  }
  nn::ConvTranspose2d conv1, conv2, conv3;
  nn::BatchNorm2d norm1, norm2;
};
TORCH_MODULE(Generator);

inline nn::Sequential make_discriminator() {
  const auto down = [](int64_t in, int64_t out, int64_t stride, int64_t pad) {
    return nn::Conv2d(nn::Conv2dOptions(in, out, 4).stride(stride).padding(pad).bias(false));
  };
  const auto leaky = [] { return nn::LeakyReLU(nn::LeakyReLUOptions().negative_slope(0.2)); };
  return nn::Sequential(down(1, 16, 2, 1), leaky(), down(16, 32, 2, 1), nn::BatchNorm2d(32),
                        leaky(), down(32, 1, 1, 0), nn::Sigmoid());
}

}  // namespace ports
