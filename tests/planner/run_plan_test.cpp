#include <fsdp/agreement.h>
#include <fsdp/optim.h>
#include <fsdp/run_plan.h>

#include <set>

#include "memory/free_memory.h"
#include "support/models.h"
#include "support/sanitizers.h"
#include "support/simulated_mesh.h"
#include "support/torch_ranks.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

// Returns the result of each rank: the peak of its plan, "code text", or an empty string.
std::vector<std::string> ends_of(int world, const Options& options, bool force, int64_t width) {
  std::vector<std::string> ends(static_cast<size_t>(world));
  run_torch_ranks(world, [&](Mesh mesh) {
    std::string& end = ends[static_cast<size_t>(mesh.rank())];
    try {
      const auto plan = plan_run(
          mesh, options, {.force = force}, [&] { return Unit<Chain>(width, 2); },
          [](Unit<Chain>& model) { return loss_of(model, batch_of(0, 0)); });
      if (plan) end = std::to_string(plan->peak_bytes());
    } catch (const RefusedElsewhere& error) {
      end = "elsewhere " + std::to_string(static_cast<int>(error.code()));
    } catch (const Error& error) {
      end = std::to_string(static_cast<int>(error.code())) + " " + error.what();
    }
  });
  return ends;
}

bool has_part(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a run's plan is that of its engine, on rank 0 alone") {
  for (const Strategy strategy : {Strategy::kFullShard, Strategy::kZero2}) {
    const Options options{.strategy = strategy};
    run_torch_ranks(2, [&](Mesh mesh) {
      const auto build = [] { return Unit<Chain>(16, 2); };
      const auto step = [](Unit<Chain>& model) { return loss_of(model, batch_of(0, 0)); };
      const auto plan = plan_run(mesh, options, {}, build, step);
      CHECK(plan.has_value() == (mesh.rank() == 0));
      auto model = build_seeded(1, build);
      Engine engine(model, mesh, options);
      AdamW optimizer(engine, {});
      for (int i = 0; i < 2; ++i) {
        step(model).backward();
        optimizer.step();
        optimizer.zero_grad();
      }
      if (!plan) return;
      CHECK(plan->memory.rest == engine.memory_plan().rest);
      CHECK(plan->memory.backward_peak == engine.memory_plan().backward_peak);
      CHECK(plan->memory.held_bytes == engine.memory_plan().held_bytes);
    });
  }
}

TEST_CASE("a step beyond the memory limit is refused on all ranks, unless it is forced") {
  const Options limited{.memory_limit = 4096};
  const std::vector<std::string> ends = ends_of(2, limited, /*force=*/false, 16);
  CHECK(ends[0].starts_with("78 a step needs "));
  CHECK(has_part(ends[0], "of device memory per rank, but the memory limit is 4.0 KiB"));
  CHECK(has_part(ends[0], "; memory would run out in: "));
  CHECK(has_part(ends[0], "hint: try in order of cost: --prefetch 0, --recompute, --offload, "));
  CHECK(ends[1] == "elsewhere 78");
  const std::vector<std::string> forced = ends_of(2, limited, /*force=*/true, 16);
  CHECK(std::stoll(forced[0]) > 4096);
  CHECK(forced[1].empty());
}

TEST_CASE("a host's free memory is divided among the ranks of that host") {
  StepPlan step;
  step.memory.host_held_bytes = free_host_bytes().value() / 4 * 3;
  CHECK_NOTHROW(require_room(simulated_mesh(4), step, {}));  // the other three are on other hosts
  run_torch_ranks(2, [&](Mesh mesh) {
    CHECK_THROWS_WITH_AS(require_room(mesh, step, {}),
                         doctest::Contains("and this host has 2 ranks"), InvalidArgument);
  });
}

TEST_CASE("a plan says where a run that is forced passes its limit") {
  const auto build = [] { return Unit<Chain>(64, 4); };
  const auto step = [](Unit<Chain>& model) { return loss_of(model, batch_of(0, 0)); };
  for (const int world : {1, 2}) {
    std::set<std::string> places;
    run_torch_ranks(world, [&](Mesh mesh) {
      const StepPlan free = plan(request_of(mesh, {}), build, step);
      const int64_t rest = free.memory.rest.total(), peak = free.peak_bytes();
      for (int64_t limit = rest / 2; limit < peak; limit += (peak - rest / 2) / 12) {
        CAPTURE(limit);
        const Options forced{.memory_limit = limit, .try_beyond_plan = true};
        std::string place;
        try {
          BuildScope building(mesh, forced);
          auto model = build();
          Engine engine(model, building);
          AdamW optimizer(engine, {});
          for (int i = 0; i < 2; ++i) {
            step(model).backward();
            optimizer.step();
            optimizer.zero_grad();
          }
        } catch (const DeviceError& error) {
          place = error.text().where;
        } catch (const InvalidArgument& error) {
          place = "construction of the model and its optimizer";
        }
        CHECK(plan(request_of(mesh, forced), build, step).refused_at == place);
        if (mesh.rank() == 0) places.insert(place);
      }
    });
    CHECK(places.size() > 3);
  }
}

TEST_CASE("ranks that need more than their host has free are refused") {
  constexpr int64_t kTooWide = 1 << 18;  // 256 GiB a layer
  const std::vector<std::string> ends = ends_of(2, {}, /*force=*/false, kTooWide);
  CHECK(ends[0].starts_with("78 a step needs "));
  CHECK(has_part(ends[0], "of host memory per rank, and this host has 2 ranks, but only "));
  CHECK(!has_part(ends[0], "--offload"));  // no offload: the device is host memory already
  CHECK(std::stoll(ends_of(2, {}, /*force=*/true, kTooWide)[0]) > (int64_t{1} << 39));
  if (kThreadSanitized) return;  // it leaves too few addresses for the plan of host memory
  // Offloaded state occupies the same host memory.
  const std::vector<std::string> offloaded = ends_of(2, {.cpu_offload = true}, false, kTooWide);
  CAPTURE(offloaded[0]);
  CHECK(offloaded[0].starts_with("78 a step needs "));
}
