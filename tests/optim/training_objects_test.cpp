// Tests the list of the objects that train with an engine.
#include <fsdp/loss_scaler.h>
#include <fsdp/lr_scheduler.h>
#include <fsdp/optim.h>

#include <optional>

#include "engine/support/twin.h"
#include "fsdp/error.h"
#include "optim/support/error_texts.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

struct Made {
  explicit Made(const Mesh& mesh)
      : model(build_seeded(7, graph_twin(2, 6, in_a_row).make)), engine(model, mesh, Options{}) {}
  bool has(const std::string& line) const {
    return engine.describe().find(line) != std::string::npos;
  }
  std::shared_ptr<torch::nn::Module> model;
  Engine engine;
};

}  // namespace

TEST_CASE("a second optimizer of all parameters is refused, naming the first") {
  run_torch_ranks(2, [](Mesh mesh) {
    Made made(mesh);
    auto first = std::make_unique<AdamW>(made.engine, AdamWOptions{});
    const auto state_bytes = [&] {
      return made.engine.stats().memory.in_use[MemoryCategory::kOptimizerState];
    };
    const int64_t bytes = state_bytes();
    CHECK_THROWS_WITH_AS(
        SGD(made.engine, {.lr = 0.1}),
        doctest::Contains(
            (two_optimizers("norm.bias", "AdamW and SGD") +
             " (construction of the second optimizer); both would update this parameter in every "
             "step; hint: choose disjoint parameters (AdamWOptions::parameters, fsdp::under), or "
             "destroy the first optimizer before you make the second")
                .c_str()),
        StateError);
    CHECK_THROWS_WITH_AS(AdamW(made.engine, {}),
                         doctest::Contains("two optimizers: AdamW and AdamW"), StateError);
    CHECK(state_bytes() == bytes);
    // The first optimizer continues to work. When it is destroyed, its entry in the list is free.
    graph_loss(*made.model, 0, mesh.rank()).backward();
    first->step();
    CHECK(first->steps() == 1);
    first.reset();
    SGD second(made.engine, {.lr = 0.1});
    second.step();
    CHECK(second.steps() == 1);
  });
}

TEST_CASE("an optimizer that could not be made leaves its place free, and so does one made again") {
  Made made(Mesh::single());
  CHECK_THROWS_AS(AdamW(made.engine, {.lr = -1}), InvalidArgument);
  std::optional<SGD> optimizer;
  optimizer.emplace(made.engine, SgdOptions{.lr = 0.1});
  optimizer.emplace(made.engine, SgdOptions{.lr = 0.2});  // destroys the first one first
  CHECK(optimizer->lr() == 0.2);
  auto other = std::make_unique<Made>(Mesh::single());
  const AdamW of_another(other->engine, {});
  other.reset();  // its entry outlives the engine
}

TEST_CASE("describe lists what trains, as long as it is there") {
  Made made(Mesh::single());
  CHECK_FALSE(made.has("trained by"));
  AdamW optimizer(made.engine, {});
  {
    const StepLR warmup(optimizer, {.step_size = 1});
    const ReduceLROnPlateau plateau(optimizer);
    const LossScaler scaler(made.engine);
    CHECK(made.has("trained by AdamW, StepLR, ReduceLROnPlateau, LossScaler\n"));
  }
  CHECK(made.has("trained by AdamW\n"));
}
