// Trains the GAN of ports/dcgan on thread ranks. It has two engines, graphs that contain units of
// both engines, and two backwards a step.

#include "ports/dcgan/model.h"
#include "ports/support/port.h"
#include "ports/support/twins.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

const auto kGanAdam = torch::optim::AdamOptions(2e-3).betas({0.5, 0.999});

struct Gan {
  ports::Generator generator{nullptr};
  torch::nn::Sequential discriminator{nullptr};
};

Gan build_gan() {
  return build_seeded(1, [] { return Gan{ports::Generator(), ports::make_discriminator()}; });
}

at::Tensor real_loss(const at::Tensor& said) {
  return at::binary_cross_entropy(said, torch::full_like(said, 0.9));
}
at::Tensor fake_loss(const at::Tensor& said) {
  return at::binary_cross_entropy(said, torch::zeros_like(said));
}
at::Tensor fooled_loss(const at::Tensor& said) {
  return at::binary_cross_entropy(said, torch::ones_like(said));
}
at::Tensor gan_noise(const ports::Part& part) {
  return ports::noise(part, {ports::kNoise, 1, 1}, 900);
}

// Returns the losses of both models. They alternate.
std::vector<double> train_gan_plainly(int world) {
  const Gan gan = build_gan();
  ports::Generator generator = gan.generator;
  torch::nn::Sequential discriminator = gan.discriminator;
  torch::optim::Adam generator_optimizer(generator->parameters(), kGanAdam);
  torch::optim::Adam discriminator_optimizer(discriminator->parameters(), kGanAdam);
  std::vector<double> losses;
  for (int64_t step = 0; step < ports::kSteps; ++step) {
    const auto part_of = [&](int rank) {
      return ports::Part{.step = step, .index = rank, .count = world};
    };
    double discriminator_sum = 0, generator_sum = 0;
    mean_gradients(*discriminator, world, [&](int rank) {
      const at::Tensor real = ports::images(part_of(rank), 1, 16, 3).inputs;
      const at::Tensor loss = real_loss(discriminator->forward(real));
      discriminator_sum += loss.item<double>();
      loss.backward();
    });
    // They are kept apart, because the engine reduces at each backward and adds.
    std::vector<at::Tensor> of_real, fakes;
    for (const at::Tensor& parameter : discriminator->parameters())
      of_real.push_back(parameter.grad().clone());
    mean_gradients(*discriminator, world, [&](int rank) {
      fakes.push_back(generator(gan_noise(part_of(rank))));
      const at::Tensor loss = fake_loss(discriminator->forward(fakes.back().detach()));
      discriminator_sum += loss.item<double>();
      loss.backward();
    });
    for (size_t i = 0; i < of_real.size(); ++i) {
      at::Tensor& gradient = discriminator->parameters()[i].mutable_grad();
      gradient = of_real[i] + gradient;
    }
    discriminator_optimizer.step();
    mean_gradients(*generator, world, [&](int rank) {
      const at::Tensor loss = fooled_loss(discriminator->forward(fakes[rank]));
      generator_sum += loss.item<double>();
      loss.backward();
    });
    generator_optimizer.step();
    losses.insert(losses.end(), {discriminator_sum / world, generator_sum / world});
  }
  return losses;
}

template <class MakeOptimizer>
std::vector<double> train_gan(const Mesh& mesh, MakeOptimizer make_optimizer) {
  const Gan gan = build_gan();
  ports::Generator generator = gan.generator;
  torch::nn::Sequential discriminator = gan.discriminator;
  const auto units = by_type<torch::nn::Conv2d, torch::nn::ConvTranspose2d>();
  Engine generator_engine(generator, mesh, {.units = units, .debug = true});
  Engine discriminator_engine(discriminator, mesh, {.units = units, .debug = true});
  const auto discriminate = [&](at::Tensor x) { return discriminator->forward(x); };
  auto generator_optimizer = make_optimizer(generator_engine);
  auto discriminator_optimizer = make_optimizer(discriminator_engine);
  std::vector<double> losses;
  for (int64_t step = 0; step < ports::kSteps; ++step) {
    const ports::Part part{.step = step, .index = mesh.rank(), .count = mesh.world_size()};
    discriminator->zero_grad();
    const at::Tensor of_real =
        real_loss(discriminator_engine.forward(discriminate, ports::images(part, 1, 16, 3).inputs));
    of_real.backward();
    const at::Tensor fake = generator_engine.forward(generator, gan_noise(part));
    const at::Tensor of_fake = fake_loss(discriminator_engine.forward(discriminate, fake.detach()));
    of_fake.backward();
    discriminator_optimizer->step();

    generator->zero_grad();  // after the forward of the generator and before its backward
    const at::Tensor of_fooled = fooled_loss(discriminator_engine.forward(discriminate, fake));
    of_fooled.backward();
    generator_optimizer->step();
    losses.push_back(mesh.mean(of_real, "real") + mesh.mean(of_fake, "fake"));
    losses.push_back(mesh.mean(of_fooled, "fooled"));
  }
  return losses;
}

}  // namespace

TEST_CASE("a GAN on a pair of engines learns as the plain program, with either Adam") {
  for (const int world : kPortRanks) {
    CAPTURE(world);
    const std::vector<double> plain = train_gan_plainly(world);
    run_torch_ranks(world, [&](Mesh mesh) {
      check_values(train_gan(mesh,
                             [](Engine& engine) {
                               return std::make_unique<AdamW>(
                                   engine,
                                   AdamWOptions{.lr = 2e-3, .beta1 = 0.5, .weight_decay = 0});
                             }),
                   plain, 2e-5);  // fsdp's AdamW rounds the last place differently
      check_values(train_gan(mesh,
                             [](Engine& engine) {
                               return std::make_unique<torch::optim::Adam>(engine.parameters(),
                                                                           kGanAdam);
                             }),
                   plain, 2e-5);
    });
  }
}
