#include "base/cpu_features.h"

#include <cpuid.h>
#include <sched.h>
#include <unistd.h>

#include <cstdlib>

namespace fsdp {
namespace {

constexpr const char* kVariable = "ONEDNN_MAX_CPU_ISA";

bool hides_amx_tiles() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kAmxTile = 1U << 24;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kAmxTile) == 0) return false;
  // EAX of leaf 0x1D, sub-leaf 0, is the number of the highest palette of tiles. 0 means that no
  // tile is described.
  return __get_cpuid_count(0x1D, 0, &a, &b, &c, &d) == 0 || a == 0;
}

}  // namespace

int usable_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof cores, &cores) == 0) return CPU_COUNT(&cores);
  return static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));  // cpu_set_t is too small for them
}

FastProducts fast_products() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  // __builtin_cpu_supports also checks that the system saves the AVX-512 registers.
  if (!__builtin_cpu_supports("avx512f") || __get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return {};
  constexpr unsigned kAmxBf16 = 1U << 22, kAvx512Fp16 = 1U << 23;  // leaf 7.0, edx
  constexpr unsigned kAvx512Bf16 = 1U << 5, kAmxFp16 = 1U << 21;   // leaf 7.1, eax
  const unsigned older = d;
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d) == 0) a = 0;
  const bool amx = !hides_amx_tiles();
  return {.bfloat16 = (a & kAvx512Bf16) != 0 || (amx && (older & kAmxBf16) != 0),
          .float16 = (older & kAvx512Fp16) != 0 || (amx && (a & kAmxFp16) != 0)};
}

bool needs_amx_left_alone() { return std::getenv(kVariable) == nullptr && hides_amx_tiles(); }

void leave_hidden_amx_alone() {
  if (needs_amx_left_alone()) setenv(kVariable, "AVX512_CORE_FP16", /*overwrite=*/1);
}

}  // namespace fsdp
