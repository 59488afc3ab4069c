// Tests MixedPrecision for the engine and for a unit, in the form in which programs write it. Also
// tests private names that programs must not see.
#include <fsdp/fsdp.h>

#include <concepts>

#include "engine/support/twin.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

template <class T>
concept ShowsState = requires(T& of) {
  of.state();
};
template <class T>
concept NamesState = requires {
  typename T::State;
};
template <class T>
concept NamesMeasurement = requires {
  typename T::Measurement;
};

using Gradients = std::map<std::string, at::Tensor>;

// Returns rank 0's slice of each gradient, after two backwards that are reduced together.
Gradients gradients_with(const MeshShape& shape, const Options& options) {
  Gradients result;
  const Twin twin = graph_twin(3, 6, in_a_row);
  run_torch_ranks(shape, [&](Mesh mesh) {
    const auto model = build_seeded(7, twin.make);
    Engine engine(model, mesh, options);
    {
      const GradSync keep(engine, false);
      twin.loss(*model, 0, mesh.rank()).backward();
    }
    twin.loss(*model, 1, mesh.rank()).backward();
    if (mesh.rank() != 0) return;
    for (ShardedParameter& each : engine.sharded_parameters()) {
      result[each.fqn] = each.local.grad().clone();
    }
  });
  return result;
}

}  // namespace

TEST_CASE("mixed precision is one value of LibTorch's types, for an engine and for a unit") {
  const Options options{
      .mixed_precision = {.param_dtype = torch::kBFloat16, .reduce_dtype = torch::kFloat32},
      .unit_options = [](std::string_view fqn) {
        UnitOptions own;
        if (fqn == "u1") {
          own.mixed_precision = {.param_dtype = torch::kFloat32, .output_dtype = torch::kFloat16};
        }
        return own;
      }};
  const MixedPrecision same{.param_dtype = torch::kBFloat16, .reduce_dtype = torch::kFloat32};
  CHECK(options.mixed_precision == same);
  run_torch_ranks(2, [&](Mesh mesh) {
    std::vector<at::ScalarType> seen;
    Unit<Graph> model(3, 6, [&](GraphImpl& graph, const at::Tensor& x) {
      at::Tensor h = x;
      for (auto& unit : graph.units) {
        h = unit(h);
        seen.push_back(unit->weight.scalar_type());
        seen.push_back(h.scalar_type());
      }
      return graph.norm(h);
    });
    Engine engine(model, mesh, options);
    model(values({2, 6}, 1)).sum().backward();
    CHECK(engine.measure_gradients().finite());
    CHECK((seen == std::vector{torch::kBFloat16, torch::kBFloat16, torch::kFloat32, torch::kFloat16,
                               torch::kBFloat16, torch::kBFloat16}));
  });
}

TEST_CASE("a unit reduces in its own type, and the others in the engine's") {
  const auto low_inside = [](std::string_view fqn) {
    UnitOptions own;
    if (fqn == "u1") own.mixed_precision = {.reduce_dtype = torch::kBFloat16};
    return own;
  };
  for (const Strategy strategy : kAllStrategies) {
    for (const bool offload : {false, true}) {
      if (offload && strategy == Strategy::kReplicate) continue;
      CAPTURE(static_cast<int>(strategy));
      CAPTURE(offload);
      const MeshShape shape = is_by_groups(strategy) ? MeshShape{.replicate = 2, .shard = 2}
                                                     : MeshShape{.replicate = 1, .shard = 3};
      Options options{.cpu_offload = offload, .strategy = strategy, .debug = true};
      const Gradients wide = gradients_with(shape, options);
      options.unit_options = low_inside;
      const Gradients mixed = gradients_with(shape, options);
      options.unit_options = nullptr;
      options.mixed_precision.reduce_dtype = torch::kBFloat16;
      const Gradients low = gradients_with(shape, options);
      int differ = 0;
      for (const auto& [fqn, value] : mixed) {
        CAPTURE(fqn);
        CHECK(bit_equal(value, (fqn.starts_with("u1.") ? low : wide).at(fqn)));
        differ += bit_equal(low.at(fqn), wide.at(fqn)) ? 0 : 1;
      }
      CHECK(differ > 0);
    }
  }
}

TEST_CASE("a program cannot name what carries a mesh, an engine or an optimizer") {
  CHECK_FALSE(ShowsState<Mesh>);
  CHECK_FALSE(ShowsState<Engine>);
  CHECK_FALSE(ShowsState<Optimizer>);
  CHECK_FALSE(NamesState<BuildScope>);
  CHECK_FALSE(NamesMeasurement<GradientReport>);
  CHECK_FALSE(std::constructible_from<Mesh, std::shared_ptr<MeshState>>);
}
