// Trains a ResNet to classify pictures.
#include <torch/torch.h>

#include "ports/resnet/model.h"
#include "ports/support/port.h"

int main() {
  ports::Run run;
  torch::manual_seed(1);
  ports::ResNet model(10);
  torch::optim::SGD optimizer(
      model->parameters(),
      torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(1e-4).nesterov(true));

  for (int64_t step = 0; step < ports::kSteps; ++step) {
    optimizer.zero_grad();
    for (const ports::Part& part : run.parts(step)) {
      const auto [x, labels] = ports::images(part, 3, 16, 10);
      const at::Tensor loss = at::cross_entropy_loss(model(x), labels);
      (loss / run.part_count()).backward();
      run.add("loss", loss);
    }
    optimizer.step();
    run.end_step();
  }
}
