#include "engine/start_warnings.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/cpu_features.h"
#include "comm/mesh_state.h"
#include "runtime/device.h"

namespace fsdp {
namespace {

void warn_of_one_unit(const std::vector<FoundUnit>& units, const UnitPolicy& policy,
                      const Mesh& mesh) {
  const auto filled =
      std::ranges::count_if(units, [](const FoundUnit& unit) { return !unit.parameters.empty(); });
  if (!policy.is_set() || filled > 1) return;
  mesh.warn({.what = fmt::format("{} chooses no module with parameters: the model is one unit",
                                 policy.described()),
             .where = "Options::units",
             .cause = "all parameters are gathered at once",
             .hint = "choose the layers that repeat (fsdp::by_type, fsdp::each_child_of)"});
}

// [Note: tiles that are hidden] in cpu_features.h.
void warn_of_hidden_amx(const std::vector<UnitOptions>& options, const Mesh& mesh) {
  const bool is_low = std::ranges::any_of(options, [](const UnitOptions& unit) {
    return unit.param_dtype && size_of(*unit.param_dtype) < size_of(DType::kFloat32);
  });
  if (!is_low || !needs_amx_left_alone()) return;
  mesh.warn({.what = "this processor announces AMX but hides its tiles",
             .where = "param_dtype",
             .cause = "LibTorch's matrix products in bfloat16 and float16 will die of an illegal "
                      "instruction",
             .hint = "start the program with ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16 in its "
                     "environment, or through fsdp::run_program, which sets it"});
}

void warn_of_slow_float16(const std::vector<UnitOptions>& options, const Mesh& mesh) {
  const bool is_float16 = std::ranges::any_of(
      options, [](const UnitOptions& unit) { return unit.param_dtype == DType::kFloat16; });
  const bool on_cpu = mesh.state().parts().device == &cpu_device();
  if (!is_float16 || !on_cpu || fast_products().float16) return;
  mesh.warn({.what = "float16 is slow on this processor",
             .where = "param_dtype",
             .cause = "it has no instructions for it (AVX512-FP16), so that each product is "
                      "computed in float32, with conversions",
             .hint = "param_dtype bfloat16 or float32 on the CPU; float16 on a GPU"});
}

}  // namespace

void warn_at_start(const std::vector<FoundUnit>& units, const std::vector<UnitOptions>& own,
                   const UnitPolicy& policy, const Mesh& mesh) {
  if (mesh.rank() != 0) return;
  warn_of_hidden_amx(own, mesh);
  warn_of_one_unit(units, policy, mesh);
  warn_of_slow_float16(own, mesh);
}

}  // namespace fsdp
