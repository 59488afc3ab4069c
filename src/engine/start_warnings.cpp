#include "engine/start_warnings.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/cpu_features.h"
#include "comm/mesh_state.h"
#include "engine/sharded_model.h"
#include "runtime/device.h"
#include "shard/parameter_bindings.h"
#include "shard/shard_context.h"

namespace fsdp {
namespace {

void warn_of_one_unit(const std::vector<FoundUnit>& units, const UnitPolicy& policy,
                      const Mesh& mesh) {
  const auto is_filled = [](const FoundUnit& unit) { return !unit.parameters.empty(); };
  if (!policy.is_set() || std::ranges::count_if(units, is_filled) > 1) return;
  const auto filled = std::ranges::find_if(units, is_filled);
  const bool is_root = filled == units.begin();
  mesh.warn({.what = fmt::format("{} {}: the model is one unit", policy.described(),
                                 is_root ? "chooses no module with parameters"
                                         : "puts all parameters into " + name_of_unit(filled->fqn)),
             .where = "Options::units",
             .cause = "all parameters are gathered at once",
             .hint = "choose the layers that repeat (fsdp::by_type, fsdp::each_child_of), and put "
                     "fewer layers into each unit"});
}

// Warns if the processor hides AMX tiles ([Note: tiles that are hidden] in cpu_features.h).
void warn_of_hidden_amx(const std::vector<UnitPlan>& plans, const Mesh& mesh) {
  const bool is_low = std::ranges::any_of(plans, [](const UnitPlan& plan) {
    const std::optional<DType>& dtype = plan.precision.param;
    return dtype && size_of(*dtype) < size_of(DType::kFloat32);
  });
  if (!is_low || !needs_amx_left_alone()) return;
  mesh.warn({.what = "this processor reports AMX, but its AMX tiles cannot be used",
             .where = "mixed_precision.param_dtype",
             .cause = "LibTorch's matrix products in bfloat16 and float16 will crash with an "
                      "illegal instruction (SIGILL)",
             .hint = "start the program with ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16 in its "
                     "environment, or through fsdp::run_program, which sets it"});
}

void warn_of_slow_float16(const std::vector<UnitPlan>& plans, const Mesh& mesh) {
  const bool is_float16 = std::ranges::any_of(
      plans, [](const UnitPlan& plan) { return plan.precision.param == DType::kFloat16; });
  const bool on_cpu = state_of(mesh).parts().device == &cpu_device();
  if (!is_float16 || !on_cpu || fast_products().float16) return;
  mesh.warn({.what = "float16 is slow on this processor",
             .where = "mixed_precision.param_dtype",
             .cause = "it has no float16 instructions (AVX512-FP16): each product is computed in "
                      "float32, with conversions",
             .hint = "use param_dtype bfloat16 or float32 on the CPU, float16 on a GPU"});
}

}  // namespace

void warn_at_start(const std::vector<FoundUnit>& units, const std::vector<UnitPlan>& plans,
                   const UnitPolicy& policy, const Mesh& mesh) {
  // Only rank 0 warns, so that a job reports each warning once.
  if (mesh.rank() != 0) return;
  warn_of_hidden_amx(plans, mesh);
  warn_of_one_unit(units, policy, mesh);
  warn_of_slow_float16(plans, mesh);
}

void warn_of_unscaled(const ShardedModel& model, const ShardContext& context) {
  if (context.mesh.rank() != 0 || context.format.has_loss_scale()) return;
  const auto is_float16 = [](const auto& unit) {
    return std::ranges::any_of(unit->shard->layout().segments(), [](const SegmentLayout& segment) {
      return segment.trainable && segment.dtype == DType::kFloat16;
    });
  };
  if (std::ranges::none_of(model.units, is_float16)) return;
  context.mesh.warn(
      {.what = "float16 training has no LossScaler",
       .where = "mixed_precision.param_dtype",
       .cause = "small gradients round to zero without an error",
       .hint =
           "construct a fsdp::LossScaler and call backward on scale(loss), or train in bfloat16"});
}

}  // namespace fsdp
