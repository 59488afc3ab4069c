// The polynomial's linear layer as one unit.
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include "ports/support/port.h"

int main() {
  const fsdp::Mesh mesh = fsdp::Mesh::from_env();
  ports::Run run(mesh);
  torch::manual_seed(1);
  fsdp::Unit<torch::nn::Linear> model(4, 1);
  fsdp::Engine engine(model, mesh);
#ifdef PORTS_TORCH_OPTIM
  torch::optim::SGD optimizer(engine.parameters(), torch::optim::SGDOptions(0.1));
#else
  fsdp::SGD optimizer(engine, {.lr = 0.1});
#endif

  for (int64_t step = 0; step < ports::kSteps; ++step) {
    model->zero_grad();
    for (const ports::Part& part : run.parts(step)) {
      const auto [x, y] = ports::polynomial(part);
      const at::Tensor loss = at::smooth_l1_loss(model(x), y);
      (loss / run.part_count()).backward();
      run.add("loss", loss);
    }
    optimizer.step();
    run.end_step();
  }
}
