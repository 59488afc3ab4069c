// Tests fsdp::plan for a unit whose parameters are all empty.
#include <fsdp/plan.h>

#include "support/torch_ranks.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

struct HollowImpl : torch::nn::Module {
  HollowImpl() { dummy = register_parameter("dummy", torch::empty({0})); }
  at::Tensor forward(const at::Tensor& x) { return torch::tanh(x) + dummy.sum(); }
  at::Tensor dummy;
};
TORCH_MODULE(Hollow);

struct HollowNetImpl : torch::nn::Module {
  explicit HollowNetImpl(bool has_empty_unit) : has_empty(has_empty_unit), linear(4, 4) {
    register_module("linear", linear);
    if (has_empty) register_module("empty", empty);
  }
  at::Tensor forward(const at::Tensor& x) { return has_empty ? empty(linear(x)) : linear(x); }
  bool has_empty;
  Unit<torch::nn::Linear> linear;
  Unit<Hollow> empty;
};
TORCH_MODULE(HollowNet);

}  // namespace

TEST_CASE("a unit of empty parameters is planned, and costs nothing") {
  const auto plan_of = [](bool has_empty, int recompute) {
    return plan(
        {.ranks = 4, .options = {.recompute = recompute}},
        [=] { return Unit<HollowNet>(has_empty); },
        [](Unit<HollowNet>& model) {
          return model(torch::ones({2, 4})).sum();
        });
  };
  for (const int recompute : {0, 1}) {
    const StepPlan with = plan_of(true, recompute), without = plan_of(false, recompute);
    CHECK(with.memory.peak_bytes() == without.memory.peak_bytes());
    CHECK(with.units == without.units + 1);
  }
}
