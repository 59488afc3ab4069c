// The digit classifier on several ranks. The engine shards the model and sums the gradients.
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include "ports/support/port.h"

namespace nn = torch::nn;

struct NetImpl : nn::Module {
  NetImpl()
      : conv1(register_module("conv1", nn::Conv2d(1, 10, 5))),
        conv2(register_module("conv2", nn::Conv2d(10, 20, 5))),
        drop(register_module("drop", nn::Dropout2d())),
        fc1(register_module("fc1", nn::Linear(320, 50))),
        fc2(register_module("fc2", nn::Linear(50, 10))) {}
  at::Tensor forward(at::Tensor x) {
    x = torch::relu(at::max_pool2d(conv1(x), 2));
    x = torch::relu(at::max_pool2d(drop(conv2(x)), 2));
    x = at::dropout(torch::relu(fc1(x.flatten(1))), 0.5, is_training());
    return at::log_softmax(fc2(x), 1);
  }
  nn::Conv2d conv1, conv2;
  nn::Dropout2d drop;
  nn::Linear fc1, fc2;
};
TORCH_MODULE(Net);

int main() {
  const fsdp::Mesh mesh = fsdp::Mesh::from_env();
  ports::Run run(mesh);
  torch::manual_seed(1);
  fsdp::Unit<Net> model;
  fsdp::Engine engine(model, mesh);
#ifdef PORTS_TORCH_OPTIM
  torch::optim::SGD optimizer(engine.parameters(), torch::optim::SGDOptions(0.05));
#else
  fsdp::SGD optimizer(engine, {.lr = 0.05});
#endif

  for (int64_t step = 0; step < ports::kSteps; ++step) {
    model->zero_grad();
    for (const ports::Part& part : run.parts(step)) {
      part.seed();
      const auto [x, digits] = ports::images(part, 1, 28, 10);
      const at::Tensor loss = at::nll_loss(model(x), digits);
      loss.backward();
      run.add("loss", loss);
    }
    optimizer.step();
    run.end_step();
  }
}
