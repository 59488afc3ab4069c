#include "base/cpu_features.h"

#include <cpuid.h>

#include <cstdlib>

namespace fsdp {
namespace {

constexpr const char* kVariable = "ONEDNN_MAX_CPU_ISA";

bool hides_amx_tiles() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kAmxTile = 1U << 24;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kAmxTile) == 0) return false;
  // Leaf 0x1D, sub-leaf 0: the highest palette of tiles.
  return __get_cpuid_count(0x1D, 0, &a, &b, &c, &d) == 0 || a == 0;
}

}  // namespace

bool needs_amx_left_alone() { return std::getenv(kVariable) == nullptr && hides_amx_tiles(); }

void leave_hidden_amx_alone() {
  if (needs_amx_left_alone()) setenv(kVariable, "AVX512_CORE_FP16", /*overwrite=*/1);
}

}  // namespace fsdp
