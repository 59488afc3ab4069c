// A GAN by policy: a pair of engines, and classes as they were.
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
  fsdp::Engine generator_engine(generator, mesh, {.units = fsdp::by_type<nn::ConvTranspose2d>()});
  fsdp::Engine discriminator_engine(discriminator, mesh, {.units = fsdp::by_type<nn::Conv2d>()});
  const auto discriminate = [&](at::Tensor x) { return discriminator->forward(x); };
#ifdef PORTS_TORCH_OPTIM
  std::vector<at::Tensor> generator_shards, discriminator_shards;
  for (const fsdp::ShardedParameter& parameter : generator_engine.sharded_parameters())
    generator_shards.push_back(parameter.local);
  for (const fsdp::ShardedParameter& parameter : discriminator_engine.sharded_parameters())
    discriminator_shards.push_back(parameter.local);
  torch::optim::Adam generator_optimizer(generator_shards,
                                         torch::optim::AdamOptions(2e-3).betas({0.5, 0.999}));
  torch::optim::Adam discriminator_optimizer(discriminator_shards,
                                             torch::optim::AdamOptions(2e-3).betas({0.5, 0.999}));
#else
  fsdp::AdamW generator_optimizer(generator_engine, {.lr = 2e-3, .beta1 = 0.5, .weight_decay = 0});
  fsdp::AdamW discriminator_optimizer(discriminator_engine,
                                      {.lr = 2e-3, .beta1 = 0.5, .weight_decay = 0});
#endif

  for (int64_t step = 0; step < ports::kSteps; ++step) {
    discriminator->zero_grad();
    std::vector<at::Tensor> fakes;
    for (const ports::Part& part : run.parts(step)) {
      const at::Tensor real = ports::images(part, 1, 16, 3).inputs;
      const at::Tensor real_said = discriminator_engine.forward(discriminate, real);
      const at::Tensor real_loss =
          at::binary_cross_entropy(real_said, torch::full_like(real_said, 0.9));
      (real_loss / run.part_count()).backward();

      const at::Tensor noise = ports::noise(part, {ports::kNoise, 1, 1}, 900);
      fakes.push_back(generator_engine.forward(generator, noise));
      const at::Tensor fake_said =
          discriminator_engine.forward(discriminate, fakes.back().detach());
      const at::Tensor fake_loss =
          at::binary_cross_entropy(fake_said, torch::zeros_like(fake_said));
      (fake_loss / run.part_count()).backward();
      run.add("discriminator loss", real_loss + fake_loss);
    }
    discriminator_optimizer.step();

    generator->zero_grad();
    for (const ports::Part& part : run.parts(step)) {
      const at::Tensor said = discriminator_engine.forward(discriminate, fakes[part.slot]);
      const at::Tensor loss = at::binary_cross_entropy(said, torch::ones_like(said));
      (loss / run.part_count()).backward();
      run.add("generator loss", loss);
    }
    generator_optimizer.step();
    run.end_step();
  }
}
