// Saves and loads a unit whose parameters are all empty, with the project's optimizer.
#include <fsdp/checkpoint.h>
#include <fsdp/optim.h>

#include "plan/placement.h"
#include "support/scratch_folder.h"
#include "support/torch_ranks.h"

namespace fsdp {
namespace {

using namespace testing;

struct HollowImpl : torch::nn::Module {
  HollowImpl() { dummy = register_parameter("dummy", torch::empty({0})); }
  at::Tensor forward(const at::Tensor& x) { return torch::tanh(x) + dummy.sum(); }
  at::Tensor dummy;
};
TORCH_MODULE(Hollow);

struct HollowNetImpl : torch::nn::Module {
  HollowNetImpl() : linear(4, 4) {
    register_module("linear", linear);
    register_module("empty", empty);
  }
  at::Tensor forward(const at::Tensor& x) { return empty(linear(x)); }
  Unit<torch::nn::Linear> linear;
  Unit<Hollow> empty;
};
TORCH_MODULE(HollowNet);

void take_step(Unit<HollowNet>& model, AdamW& optimizer, int step) {
  model(values({2, 4}, step)).square().mean().backward();
  optimizer.clip_grad_norm(0.5);
  optimizer.step();
  optimizer.zero_grad();
}

TEST_CASE("units of empty parameters are optimised, saved and loaded in every strategy") {
  for (const Strategy strategy : kAllStrategies) {
    for (const bool offload : {false, true}) {
      CAPTURE(name_of(strategy));
      CAPTURE(offload);
      const ScratchFolder folder;
      run_torch_ranks({.replicate = 2, .shard = 2}, [&](Mesh mesh) {
        const Options options{.cpu_offload = offload, .strategy = strategy, .debug = true};
        const auto make = [] { return Unit<HollowNet>(); };
        auto model = build_seeded(7, make), again = build_seeded(8, make);
        Engine engine(model, mesh, options), other(again, mesh, options);
        AdamW optimizer(engine, {}), resumed(other, {});
        take_step(model, optimizer, 1);
        save_weights(engine, folder / "weights");
        save_optimizer(optimizer, folder / "optimizer");
        load_weights(other, folder / "weights");
        load_optimizer(resumed, folder / "optimizer");
        take_step(model, optimizer, 2);
        take_step(again, resumed, 2);
        const auto expected = full_parameters(engine);
        for (const auto& [fqn, value] : full_parameters(other)) {
          CAPTURE(fqn);
          CHECK(bit_equal(value, expected.at(fqn)));
        }
        CHECK(expected.at("empty.dummy").numel() == 0);
      });
    }
  }
}

}  // namespace
}  // namespace fsdp
