#include <fmt/format.h>

#include "policy/support/policy_twin.h"

using namespace fsdp;
using namespace fsdp::testing;

TEST_CASE("plain models are trained to the plain bits on 1 to 4 ranks") {
  for (const PlainModel& model : plain_models()) {
    CAPTURE(model.name);
    for (const int world : {1, 2, 3, 4}) {
      CAPTURE(world);
      if (!is_tried(world, 4)) continue;
      const MeshShape shape{.replicate = 1, .shard = world};
      const PolicyResult plain = train_plainly(model, shape, /*by_groups=*/false, std::nullopt);
      for (const int prefetch : {0, 1, 2}) {
        if (!is_tried(prefetch, 3)) continue;
        for (const CpuStreamKind streams : every_stream_kind()) {
          CAPTURE(prefetch);
          CAPTURE(static_cast<int>(streams));
          const PolicyResult run = train_by_policy(
              model, shape,
              {.prefetch_units = prefetch, .debug = true, .tuning = {.cpu_streams = streams}});
          CHECK(first_difference(run, plain) == "");
        }
      }
    }
  }
}

TEST_CASE("every strategy trains plain models to the plain bits, in fp32 and bf16, offloaded too") {
  int number = 0;
  for (const PlainModel& model : plain_models()) {
    CAPTURE(model.name);
    for (const std::optional<at::ScalarType> dtype :
         {std::optional<at::ScalarType>(), std::optional(torch::kBFloat16)}) {
      CAPTURE(dtype.has_value());
      for (const bool in_groups : {false, true}) {
        const MeshShape shape = in_groups ? MeshShape{.replicate = 2, .shard = 2}
                                          : MeshShape{.replicate = 1, .shard = 3};
        if (!is_tried(number++, 4)) continue;
        const PolicyResult plain = train_plainly(model, shape, in_groups, dtype);
        for (const Strategy strategy : kAllStrategies) {
          // On a mesh with groups, kReplicate and ZeRO sum over all ranks at once.
          if (is_by_groups(strategy) != in_groups) continue;
          for (const bool offload : {false, true}) {
            if (offload && strategy == Strategy::kReplicate) continue;
            CAPTURE(static_cast<int>(strategy));
            CAPTURE(offload);
            const PolicyResult run = train_by_policy(model, shape,
                                                     {.mixed_precision = {.param_dtype = dtype},
                                                      .cpu_offload = offload,
                                                      .strategy = strategy,
                                                      .debug = true});
            CHECK(first_difference(run, plain) == "");
          }
        }
      }
    }
  }
}

TEST_CASE("units are what the policy chose, gathered one after the other and once each") {
  using Names = std::vector<std::string>;
  const std::map<int, Names> names_by_layers{{1, {"layers.0", "layers.1", "layers.2"}},
                                             {2, {"layers.0-1", "layers.2"}},
                                             {3, {"layers.0-2"}},
                                             {9, {"layers.0-2"}}};
  for (const auto& [layers, names] : names_by_layers) {
    CAPTURE(layers);
    PlainModel gpt = plain_model("GPT");
    gpt.units = each_child_of("layers", layers);
    const PolicyResult run =
        train_by_policy(gpt, {.replicate = 1, .shard = 2}, {.prefetch_units = 0});
    Names expected{"unshard ", "forward "};
    for (const std::string& name : names) {
      for (const std::string event : {"unshard ", "forward ", "reshard "}) {
        expected.push_back(event + name);
      }
    }
    expected.push_back("pre_backward ");
    for (auto name = names.rbegin(); name != names.rend(); ++name) {
      for (const std::string event : {"pre_backward ", "unshard ", "reshard ", "reduce "}) {
        expected.push_back(event + *name);
      }
    }
    expected.insert(expected.end(), {"reshard ", "reduce "});
    CHECK(run.events == expected);
  }
  for (const PlainModel& model : plain_models()) {
    CAPTURE(model.name);
    run_torch_ranks(1, [&](Mesh mesh) {
      const auto module = build_seeded(3, model.make);
      const Engine engine(module, mesh, {.units = model.units});
      CHECK(engine.describe().find(fmt::format("{} units", model.expected_units)) !=
            std::string::npos);
    });
  }
}
