// The GAN with units by policy. It has two engines, and its classes are unchanged.
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include "ports/dcgan/model.h"
#include "ports/support/port.h"

namespace nn = torch::nn;

int main() {
  const fsdp::Mesh mesh = fsdp::Mesh::from_env();
  ports::Run run(mesh);
  torch::manual_seed(1);
  ports::Generator generator;
  nn::Sequential discriminator = ports::make_discriminator();
  fsdp::Engine g_engine(generator, mesh, {.units = fsdp::by_type<nn::ConvTranspose2d>()});
  fsdp::Engine d_engine(discriminator, mesh, {.units = fsdp::by_type<nn::Conv2d>()});
  const auto discriminate = [&](at::Tensor x) { return discriminator->forward(x); };
#ifdef PORTS_TORCH_OPTIM
  torch::optim::Adam g_optimizer(g_engine.parameters(),
                                 torch::optim::AdamOptions(2e-3).betas({0.5, 0.999}));
  torch::optim::Adam d_optimizer(d_engine.parameters(),
                                 torch::optim::AdamOptions(2e-3).betas({0.5, 0.999}));
#else
  fsdp::AdamW g_optimizer(g_engine, {.lr = 2e-3, .beta1 = 0.5, .weight_decay = 0});
  fsdp::AdamW d_optimizer(d_engine, {.lr = 2e-3, .beta1 = 0.5, .weight_decay = 0});
#endif

  for (int64_t step = 0; step < ports::kSteps; ++step) {
    discriminator->zero_grad();
    std::vector<at::Tensor> fakes;
    for (const ports::Part& part : run.parts(step)) {
      const at::Tensor real = ports::images(part, 1, 16, 3).inputs;
      const at::Tensor real_said = d_engine.forward(discriminate, real);
      const at::Tensor real_loss =
          at::binary_cross_entropy(real_said, torch::full_like(real_said, 0.9));
      (real_loss / run.part_count()).backward();

      const at::Tensor noise = ports::noise(part, {ports::kNoise, 1, 1}, 900);
      fakes.push_back(g_engine.forward(generator, noise));
      const at::Tensor fake_said = d_engine.forward(discriminate, fakes.back().detach());
      const at::Tensor fake_loss =
          at::binary_cross_entropy(fake_said, torch::zeros_like(fake_said));
      (fake_loss / run.part_count()).backward();
      run.add("discriminator loss", real_loss + fake_loss);
    }
    d_optimizer.step();

    generator->zero_grad();
    for (const ports::Part& part : run.parts(step)) {
      const at::Tensor said = d_engine.forward(discriminate, fakes[part.slot]);
      const at::Tensor loss = at::binary_cross_entropy(said, torch::ones_like(said));
      (loss / run.part_count()).backward();
      run.add("generator loss", loss);
    }
    g_optimizer.step();
    run.end_step();
  }
}
