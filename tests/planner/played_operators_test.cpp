// Tests measured times of operators, and plans that use them.
#include <fmt/format.h>
#include <fsdp/measured_rates.h>
#include <fsdp/plan.h>

#include <limits>
#include <map>
#include <string>

#include "models/gpt.h"
#include "planner/support/vision_models.h"
#include "planner/time/operator_key.h"
#include "support/torch_ranks.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

constexpr double kInstant = std::numeric_limits<double>::infinity();

// Rates with which only measured operators take time.
Rates only_operators() {
  return {.machine = "test",
          .source = "chosen",
          .copy = kInstant,
          .types = {{.dtype = torch::kFloat32, .products = {{1, kInstant}}, .attention = kInstant}},
          .host = {.bytes = kInstant}};
}

Planner gpt_planner() {
  return {[] { return Unit<gpt::Gpt>(gpt::preset_config("tiny")); },
          [](Unit<gpt::Gpt>& model) {
            const at::Tensor ids = torch::zeros({2, 32}, torch::kLong);
            return at::cross_entropy_loss(model(ids).flatten(0, 1), ids.flatten());
          }};
}

PlayedOperators played(PlayedOperators operators) {
  for (int round = 0; round < 2; ++round) operators.play(torch::kCPU, CpuClock::kWall);
  return operators;
}

std::string key_of(const char* name, const torch::jit::Stack& stack) {
  return operator_key(c10::Dispatcher::singleton().findSchemaOrThrow(name, ""), stack);
}

}  // namespace

TEST_CASE("the key of an operator has its shapes, strides, types, integers and autograd") {
  const at::Tensor a = torch::ones({2, 3}), b = torch::ones({3, 4});
  CHECK(key_of("aten::mm", {a, b}) == "aten::mm(Float[2,3] Float[3,4])");
  CHECK(key_of("aten::mm", {a, torch::ones({4, 3}).t()}) == "aten::mm(Float[2,3] Float[3,4;1,3])");
  CHECK(key_of("aten::mm", {a.to(torch::kBFloat16), b}) == "aten::mm(BFloat16[2,3] Float[3,4])");
  CHECK(key_of("aten::t", {torch::ones({2, 3}).requires_grad_()}) == "aten::t(Float[2,3]) grad");
  const at::NoGradGuard no_grad;
  CHECK(key_of("aten::t", {torch::ones({2, 3}).requires_grad_()}) == "aten::t(Float[2,3])");
  CHECK(key_of("aten::permute", {a, std::vector<int64_t>{1, 0}}) ==
        "aten::permute(Float[2,3] [1,0])");
}

TEST_CASE("every operator of a step runs by itself, and a plan uses all measured times") {
  Planner planner = gpt_planner();
  PlanRequest request;
  const PlayedOperators operators = played(planner.operators(request));
  CHECK(operators.failures().empty());
  request.rates = only_operators();
  request.rates->operators = operators.prices(0);
  CHECK(std::ssize(request.rates->operators) == operators.count());
  const StepTime time = planner.plan(request).time.value();
  CHECK(time.total_ns > 0);
  CHECK(time.products_ns > 0);
  CHECK(time.attention_ns > 0);
  CHECK(time.kernels_ns + time.optimizer_ns + time.host_ns == 0);
  CHECK(time.basis.find("(100 %) measured, 0 (0 %) by operations, 0 (0 %) by bytes") !=
        std::string::npos);

  // A constant that is added to each price counts the calls.
  constexpr double kBetween = 1e6;
  request.rates->operators = operators.prices(kBetween);
  const int64_t longer = planner.plan(request).time->total_ns - time.total_ns;
  CHECK(longer % static_cast<int64_t>(kBetween) == 0);
  CHECK(longer > operators.count() * static_cast<int64_t>(kBetween));  // two layers
}

TEST_CASE("convolutions, norms and views run by themselves") {
  Planner planner([] { return Unit<ResNet>(); },
                  [](Unit<ResNet>& model) {
                    return model(torch::ones({2, 3, 32, 32})).sum();
                  });
  const PlayedOperators operators = played(planner.operators({}));
  CHECK(operators.failures().empty());
  CHECK(operators.count() > 50);
}

TEST_CASE("an operator without a measured time is priced by the rates, and the basis counts it") {
  Planner planner = gpt_planner();
  PlanRequest request;
  Rates rates = only_operators();
  rates.operators = played(planner.operators(request)).prices(0);
  const size_t all = rates.operators.size();
  std::erase_if(rates.operators,
                [](const auto& each) { return each.first.starts_with("aten::linear"); });
  REQUIRE(rates.operators.size() < all);
  request.rates = rates;
  const StepTime time = planner.plan(request).time.value();
  CHECK(time.basis.find(" 0 (0 %) by operations") == std::string::npos);
  // With autograd, the keys of another batch differ.
  rates.operators = {{"aten::mm(Float[1,1] Float[1,1])", 1e9}};
  request.rates = rates;
  CHECK(planner.plan(request).time->total_ns == 0);
}

TEST_CASE("prices need two rounds") {
  PlayedOperators operators = gpt_planner().operators({});
  CHECK(operators.count() > 0);
  operators.play(torch::kCPU, CpuClock::kThread);
  CHECK_THROWS_WITH_AS(operators.prices(0), doctest::Contains("were played 1 times"), StateError);
}

TEST_CASE("ranks measure their rates together, and the file of the rates has all of them") {
  run_torch_ranks(2, [](const Mesh& mesh) {
    const Rates rates =
        measured_rates(mesh, {.seconds = 0.01, .kernel_numel = 1000, .link_bytes = 1 << 16});
    CHECK(rates.copy > 0);
    CHECK(rates.host.bytes > 0);
    CHECK(rates.host.gathers.size() == 3);
    CHECK(rates.host.reductions.size() == 3);
    CHECK(rates.cpu.ranks == 2);
    CHECK(rates.kernels.size() == 6);
    REQUIRE(rates.types.size() == 1);
    CHECK(rates.types[0].attention > 0);
    const Rates read = parse_rates(to_json(rates), "measured");
    CHECK(to_json(read) == to_json(rates));
    PlanRequest request{.ranks = 2, .rates = read};
    CHECK(gpt_planner().plan(request).time->total_ns > 0);
  });
}
