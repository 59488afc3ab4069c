// Trains a digit classifier on several ranks. Each rank has its own part of the data. A process
// group sums the gradients of one parameter after another.
#include <torch/torch.h>

#include "ports/support/port.h"
#include "ports/support/process_group.h"

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
  ports::ProcessGroup group;
  ports::Run run(group);
  torch::manual_seed(1);
  Net model;
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05));

  for (int64_t step = 0; step < ports::kSteps; ++step) {
    model->zero_grad();
    for (const ports::Part& part : run.parts(step)) {
      part.seed();
      const auto [x, digits] = ports::images(part, 1, 28, 10);
      const at::Tensor loss = at::nll_loss(model(x), digits);
      loss.backward();
      run.add("loss", loss);
    }
    for (const at::Tensor& parameter : model->parameters()) {
      at::Tensor gradient = parameter.grad();
      group.all_reduce(gradient);
      gradient.div_(group.world_size());
    }
    optimizer.step();
    run.end_step();
  }
}
