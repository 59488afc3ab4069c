// AlexNet with units by policy: each layer that has parameters is a unit.
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include "ports/support/port.h"

namespace nn = torch::nn;

struct AlexNetImpl : nn::Module {
  explicit AlexNetImpl(int64_t classes)
      : features(register_module(
            "features",
            nn::Sequential(conv(3, 16, 3, 2), nn::ReLU(), nn::MaxPool2d(2), conv(16, 32, 3, 1),
                           nn::ReLU(), nn::MaxPool2d(2), conv(32, 48, 3, 1), nn::ReLU(),
                           conv(48, 32, 3, 1), nn::ReLU(), conv(32, 32, 3, 1), nn::ReLU()))),
        classifier(register_module(
            "classifier",
            nn::Sequential(nn::Dropout(), nn::Linear(32 * 2 * 2, 64), nn::ReLU(), nn::Dropout(),
                           nn::Linear(64, 64), nn::ReLU(), nn::Linear(64, classes)))) {}
  at::Tensor forward(at::Tensor x) {
    x = at::adaptive_avg_pool2d(features->forward(x), {2, 2});
    return classifier->forward(x.flatten(1));
  }
  static nn::Conv2d conv(int64_t in, int64_t out, int64_t size, int64_t stride) {
    return nn::Conv2d(nn::Conv2dOptions(in, out, size).stride(stride).padding(size / 2));
  }
  nn::Sequential features, classifier;
};
TORCH_MODULE(AlexNet);

int main() {
  const fsdp::Mesh mesh = fsdp::Mesh::from_env();
  ports::Run run(mesh);
  torch::manual_seed(1);
  AlexNet model(10);
  fsdp::Engine engine(model, mesh, {.units = fsdp::by_type<nn::Conv2d, nn::Linear>()});
#ifdef PORTS_TORCH_OPTIM
  torch::optim::SGD optimizer(engine.parameters(),
                              torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(5e-4));
#else
  fsdp::SGD optimizer(engine, {.lr = 0.05, .momentum = 0.9, .weight_decay = 5e-4});
#endif

  for (int64_t step = 0; step < ports::kSteps; ++step) {
    optimizer.zero_grad();
    for (const ports::Part& part : run.parts(step)) {
      part.seed();
      const auto [x, labels] = ports::images(part, 3, 32, 10);
      const at::Tensor loss = at::cross_entropy_loss(engine.forward(model, x), labels);
      (loss / run.part_count()).backward();
      run.add("loss", loss);
    }
    optimizer.step();
    run.end_step();
  }
}
