// Trains a U-Net to mark the foreground of a picture. Skip connections pass features from the way
// down to the way up.
#include <torch/torch.h>

#include "ports/support/port.h"

namespace nn = torch::nn;

// Returns two convolutions, each followed by a norm.
nn::Sequential convs(int64_t in, int64_t out) {
  nn::Sequential layers;
  for (const int64_t from : {in, out}) {
    layers->push_back(nn::Conv2d(nn::Conv2dOptions(from, out, 3).padding(1).bias(false)));
    layers->push_back(nn::BatchNorm2d(out));
    layers->push_back(nn::ReLU());
  }
  return layers;
}

struct UNetImpl : nn::Module {
  UNetImpl(int64_t channels, int64_t depth, int64_t classes)
      : first(register_module("first", convs(1, channels))),
        down(register_module("down", nn::ModuleList())),
        up(register_module("up", nn::ModuleList())),
        head(register_module("head", nn::Conv2d(channels, classes, 1))) {
    for (int64_t wide = channels; wide < (channels << depth); wide *= 2)
      down->push_back(convs(wide, 2 * wide));
    for (int64_t wide = channels << depth; wide > channels; wide /= 2)
      up->push_back(convs(wide + wide / 2, wide / 2));
  }
  at::Tensor forward(at::Tensor x) {
    std::vector<at::Tensor> skipped{first->forward(x)};
    for (const auto& layer : *down) {
      x = at::max_pool2d(skipped.back(), 2);
      skipped.push_back(layer->as<nn::Sequential>()->forward(x));
    }
    x = skipped.back();
    for (const auto& layer : *up) {
      skipped.pop_back();
      x = torch::cat({skipped.back(), at::upsample_nearest2d(x, skipped.back().sizes().slice(2))},
                     1);
      x = layer->as<nn::Sequential>()->forward(x);
    }
    return head(x);
  }
  nn::Sequential first;
  nn::ModuleList down, up;
  nn::Conv2d head;
};
TORCH_MODULE(UNet);

int main() {
  ports::Run run;
  torch::manual_seed(1);
  UNet model(6, 2, 2);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));

  for (int64_t step = 0; step < ports::kSteps; ++step) {
    optimizer.zero_grad();
    for (const ports::Part& part : run.parts(step)) {
      const at::Tensor x = ports::images(part, 1, 16, 3).inputs;
      const at::Tensor marks = x.squeeze(1).gt(0.5).to(torch::kLong);
      const at::Tensor loss = at::cross_entropy_loss(model(x), marks);
      (loss / run.part_count()).backward();
      run.add("loss", loss);
    }
    optimizer.step();
    run.end_step();
  }
  torch::NoGradGuard no_grad;
  model->eval();
  for (const ports::Part& part : run.parts(ports::kSteps)) {
    const at::Tensor x = ports::images(part, 1, 16, 3).inputs;
    const at::Tensor marks = x.squeeze(1).gt(0.5).to(torch::kLong);
    run.add("test loss", at::cross_entropy_loss(model(x), marks));
  }
  run.end_step();
}
