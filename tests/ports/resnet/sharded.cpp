// The ResNet with units by policy: its blocks are units, and its classes are unchanged.
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include "ports/resnet/model.h"
#include "ports/support/port.h"

int main() {
  const fsdp::Mesh mesh = fsdp::Mesh::from_env();
  ports::Run run(mesh);
  torch::manual_seed(1);
  ports::ResNet model(10);
  fsdp::Engine engine(model, mesh, {.units = fsdp::each_child_of("layers")});
#ifdef PORTS_TORCH_OPTIM
  torch::optim::SGD optimizer(
      engine.parameters(),
      torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(1e-4).nesterov(true));
#else
  fsdp::SGD optimizer(engine,
                      {.lr = 0.05, .momentum = 0.9, .weight_decay = 1e-4, .nesterov = true});
#endif

  for (int64_t step = 0; step < ports::kSteps; ++step) {
    optimizer.zero_grad();
    for (const ports::Part& part : run.parts(step)) {
      const auto [x, labels] = ports::images(part, 3, 16, 10);
      const at::Tensor loss = at::cross_entropy_loss(engine.forward(model, x), labels);
      (loss / run.part_count()).backward();
      run.add("loss", loss);
    }
    optimizer.step();
    run.end_step();
  }
}
