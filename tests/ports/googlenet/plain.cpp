// Trains GoogLeNet, which has blocks of four branches and two auxiliary heads.
#include <torch/torch.h>

#include "ports/support/port.h"

namespace nn = torch::nn;

struct ConvImpl : nn::Module {
  ConvImpl(int64_t in, int64_t out, int64_t size)
      : conv(register_module("conv",
                             nn::Conv2d(nn::Conv2dOptions(in, out, size).padding(size / 2)))) {}
  at::Tensor forward(at::Tensor x) { return torch::relu(conv(x)); }
  nn::Conv2d conv;
};
TORCH_MODULE(Conv);

// A block of four parallel branches.
struct InceptionImpl : nn::Module {
  InceptionImpl(int64_t in, int64_t out)
      : branch1(register_module("branch1", Conv(in, out, 1))),
        branch2(register_module("branch2", nn::Sequential(Conv(in, out, 1), Conv(out, out, 3)))),
        branch3(register_module("branch3", nn::Sequential(Conv(in, out, 1), Conv(out, out, 5)))),
        branch4(register_module("branch4", Conv(in, out, 1))) {}
  at::Tensor forward(at::Tensor x) {
    const at::Tensor pooled = at::max_pool2d(x, 3, 1, 1);
    return torch::cat({branch1(x), branch2->forward(x), branch3->forward(x), branch4(pooled)}, 1);
  }
  Conv branch1;
  nn::Sequential branch2, branch3;
  Conv branch4;
};
TORCH_MODULE(Inception);

// An auxiliary classifier in the middle of the net.
struct AuxiliaryImpl : nn::Module {
  AuxiliaryImpl(int64_t in, int64_t classes)
      : fc1(register_module("fc1", nn::Linear(in * 4, 32))),
        drop(register_module("drop", nn::Dropout(0.7))),
        fc2(register_module("fc2", nn::Linear(32, classes))) {}
  at::Tensor forward(at::Tensor x) {
    x = at::adaptive_avg_pool2d(x, {2, 2}).flatten(1);
    return fc2(drop(torch::relu(fc1(x))));
  }
  nn::Linear fc1;
  nn::Dropout drop;
  nn::Linear fc2;
};
TORCH_MODULE(Auxiliary);

struct Outputs {
  at::Tensor logits, auxiliary1, auxiliary2;
};

struct GoogLeNetImpl : nn::Module {
  explicit GoogLeNetImpl(int64_t classes)
      : stem(register_module("stem", Conv(3, 16, 3))),
        inception1(register_module("inception1", Inception(16, 6))),
        inception2(register_module("inception2", Inception(24, 8))),
        inception3(register_module("inception3", Inception(32, 8))),
        auxiliary1(register_module("auxiliary1", Auxiliary(24, classes))),
        auxiliary2(register_module("auxiliary2", Auxiliary(32, classes))),
        drop(register_module("drop", nn::Dropout(0.4))),
        fc(register_module("fc", nn::Linear(32, classes))) {}
  Outputs forward(at::Tensor x) {
    x = inception1(at::max_pool2d(stem(x), 2));
    const at::Tensor first = auxiliary1(x);
    x = inception2(at::max_pool2d(x, 2));
    const at::Tensor second = auxiliary2(x);
    x = at::adaptive_avg_pool2d(inception3(x), {1, 1});
    return {fc(drop(x.flatten(1))), first, second};
  }
  Conv stem;
  Inception inception1, inception2, inception3;
  Auxiliary auxiliary1, auxiliary2;
  nn::Dropout drop;
  nn::Linear fc;
};
TORCH_MODULE(GoogLeNet);

int main() {
  ports::Run run;
  torch::manual_seed(1);
  GoogLeNet model(10);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));

  for (int64_t step = 0; step < ports::kSteps; ++step) {
    optimizer.zero_grad();
    for (const ports::Part& part : run.parts(step)) {
      part.seed();
      const auto [x, labels] = ports::images(part, 3, 16, 10);
      const Outputs said = model(x);
      const at::Tensor loss = at::cross_entropy_loss(said.logits, labels) +
                              0.3 * at::cross_entropy_loss(said.auxiliary1, labels) +
                              0.3 * at::cross_entropy_loss(said.auxiliary2, labels);
      (loss / run.part_count()).backward();
      run.add("loss", loss);
    }
    optimizer.step();
    run.end_step();
  }
}
