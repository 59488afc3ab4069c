// Trains a GAN. One model generates pictures, and another model distinguishes them from real
// pictures.
#include <torch/torch.h>

#include "ports/dcgan/model.h"
#include "ports/support/port.h"

namespace nn = torch::nn;

int main() {
  ports::Run run;
  torch::manual_seed(1);
  ports::Generator generator;
  nn::Sequential discriminator = ports::make_discriminator();
  torch::optim::Adam g_optimizer(generator->parameters(),
                                 torch::optim::AdamOptions(2e-3).betas({0.5, 0.999}));
  torch::optim::Adam d_optimizer(discriminator->parameters(),
                                 torch::optim::AdamOptions(2e-3).betas({0.5, 0.999}));

  for (int64_t step = 0; step < ports::kSteps; ++step) {
    discriminator->zero_grad();
    std::vector<at::Tensor> fakes;
    for (const ports::Part& part : run.parts(step)) {
      const at::Tensor real = ports::images(part, 1, 16, 3).inputs;
      const at::Tensor real_said = discriminator->forward(real);
      const at::Tensor real_loss =
          at::binary_cross_entropy(real_said, torch::full_like(real_said, 0.9));
      (real_loss / run.part_count()).backward();

      const at::Tensor noise = ports::noise(part, {ports::kNoise, 1, 1}, 900);
      fakes.push_back(generator(noise));
      const at::Tensor fake_said = discriminator->forward(fakes.back().detach());
      const at::Tensor fake_loss =
          at::binary_cross_entropy(fake_said, torch::zeros_like(fake_said));
      (fake_loss / run.part_count()).backward();
      run.add("discriminator loss", real_loss + fake_loss);
    }
    d_optimizer.step();

    generator->zero_grad();
    for (const ports::Part& part : run.parts(step)) {
      const at::Tensor said = discriminator->forward(fakes[part.slot]);
      const at::Tensor loss = at::binary_cross_entropy(said, torch::ones_like(said));
      (loss / run.part_count()).backward();
      run.add("generator loss", loss);
    }
    g_optimizer.step();
    run.end_step();
  }
}
