// A generator and a discriminator in one model. Two optimizers train them in turns.
#pragma once

#include <fsdp/optim.h>

#include "engine/support/twin.h"

namespace fsdp::testing {

struct GanNetImpl : torch::nn::Module {
  GanNetImpl(int64_t in, int64_t hidden, int64_t out) : first(in, hidden), last(hidden, out) {
    register_module("first", first);
    register_module("last", last);
    gain = register_parameter("gain", torch::ones({out}));
  }
  at::Tensor forward(const at::Tensor& x) { return gain * last(torch::tanh(first(x))); }
  torch::nn::Linear first, last;
  at::Tensor gain;
};
TORCH_MODULE(GanNet);

// The model. `Net` is Unit<GanNet> or GanNet. If it is GanNet, both nets share one flat segment of
// the root's unit.
template <class Net>
struct GanOf : torch::nn::Module {
  GanOf() : generator(5, 13, 7), discriminator(7, 11, 3) {
    register_module("generator", generator);
    register_module("discriminator", discriminator);
  }
  // Returns the generator's loss if `of_generator` is true. Otherwise returns the discriminator's
  // loss; its backward does not reach the generator.
  at::Tensor forward(const at::Tensor& noise, bool of_generator) {
    const at::Tensor fake = generator(noise);
    if (of_generator) return (discriminator(fake) - 1).square().mean();
    const at::Tensor real = torch::sin(noise.sum(1, true)) * torch::ones({1, 7});
    return (discriminator(real) - 1).square().mean() + discriminator(fake.detach()).square().mean();
  }
  Net generator, discriminator;
};
using GanImpl = GanOf<Unit<GanNet>>;
TORCH_MODULE(Gan);
using GanInOneUnitImpl = GanOf<GanNet>;
TORCH_MODULE(GanInOneUnit);

inline Twin gan_twin(bool in_one_unit) {
  return {.make = [=]() -> std::shared_ptr<torch::nn::Module> {
            if (in_one_unit) return Unit<GanInOneUnit>().ptr();
            return Unit<Gan>().ptr();
          },
          .loss = nullptr};
}

inline at::Tensor gan_loss(torch::nn::Module& model, int step, int rank, bool of_generator) {
  const at::Tensor noise = values({4, 5}, 100 * step + 10 * rank + (of_generator ? 1 : 0));
  if (auto* gan = dynamic_cast<UnitImpl<GanImpl>*>(&model)) return gan->call(noise, of_generator);
  return dynamic_cast<UnitImpl<GanInOneUnitImpl>&>(model).call(noise, of_generator);
}

inline bool is_of_generator(const std::string& fqn) { return fqn.starts_with("generator."); }

}  // namespace fsdp::testing
