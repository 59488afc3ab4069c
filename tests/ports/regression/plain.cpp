// Fits a polynomial with a linear layer on the powers of x. The program updates the weights itself.
#include <torch/torch.h>

#include "ports/support/port.h"

int main() {
  ports::Run run;
  torch::manual_seed(1);
  torch::nn::Linear model(4, 1);

  for (int64_t step = 0; step < ports::kSteps; ++step) {
    model->zero_grad();
    for (const ports::Part& part : run.parts(step)) {
      const auto [x, y] = ports::polynomial(part);
      const at::Tensor loss = at::smooth_l1_loss(model(x), y);
      (loss / run.part_count()).backward();
      run.add("loss", loss);
    }
    for (const at::Tensor& parameter : model->parameters())
      parameter.data().add_(parameter.grad(), -0.1);
    run.end_step();
  }
}
