// The autoencoder as one unit. The loss of a step is also summed over the ranks.
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <tuple>

#include "ports/support/port.h"

namespace nn = torch::nn;

struct VaeImpl : nn::Module {
  VaeImpl()
      : fc1(register_module("fc1", nn::Linear(64, 32))),
        fc21(register_module("fc21", nn::Linear(32, 6))),
        fc22(register_module("fc22", nn::Linear(32, 6))),
        fc3(register_module("fc3", nn::Linear(6, 32))),
        fc4(register_module("fc4", nn::Linear(32, 64))) {}
  std::tuple<at::Tensor, at::Tensor> encode(const at::Tensor& x) {
    const at::Tensor h = torch::relu(fc1(x));
    return {fc21(h), fc22(h)};
  }
  at::Tensor reparameterize(const at::Tensor& mean, const at::Tensor& log_variance) {
    if (!is_training()) return mean;
    const at::Tensor deviation = (0.5 * log_variance).exp();
    return mean + deviation * torch::randn_like(deviation);
  }
  at::Tensor decode(const at::Tensor& z) { return torch::sigmoid(fc4(torch::relu(fc3(z)))); }
  std::tuple<at::Tensor, at::Tensor, at::Tensor> forward(const at::Tensor& x) {
    const auto [mean, log_variance] = encode(x);
    return {decode(reparameterize(mean, log_variance)), mean, log_variance};
  }
  nn::Linear fc1, fc21, fc22, fc3, fc4;
};
TORCH_MODULE(Vae);

int main() {
  const fsdp::Mesh mesh = fsdp::Mesh::from_env();
  ports::Run run(mesh);
  torch::manual_seed(1);
  fsdp::Unit<Vae> model;
  fsdp::Engine engine(model, mesh, {.gradient_reduction = fsdp::GradientReduction::kSum});
#ifdef PORTS_TORCH_OPTIM
  torch::optim::Adam optimizer(engine.parameters(), torch::optim::AdamOptions(1e-2));
#else
  fsdp::AdamW optimizer(engine, {.lr = 1e-2, .weight_decay = 0});
#endif

  for (int64_t step = 0; step < ports::kSteps; ++step) {
    optimizer.zero_grad();
    for (const ports::Part& part : run.parts(step)) {
      part.seed();
      const at::Tensor x = ports::images(part, 1, 8, 3).inputs.sigmoid().flatten(1);
      const auto [made, mean, log_variance] = model(x);
      const at::Tensor from_prior =
          -0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp()).sum();
      const at::Tensor loss =
          at::binary_cross_entropy(made, x, {}, at::Reduction::Sum) + from_prior;
      loss.backward();
      run.add("loss", loss);
    }
    optimizer.step();
    run.end_step();
  }
  torch::NoGradGuard no_grad;
  torch::manual_seed(2);
  fsdp::UnitScope scope(*model);
  run.say("dream", model->decode(torch::randn({1, 6})));
}
