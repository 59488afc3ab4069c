// Features of the processor that matrix products need.
#pragma once

namespace fsdp {

// [Note: tiles that are hidden]
// Some virtual machines announce AMX but hide the description of its tiles (CPUID leaf 0x1D is
// empty). LibTorch's oneDNN then configures no tile, and its first matrix product in bfloat16 or
// float16 ends with SIGILL. ONEDNN_MAX_CPU_ISA makes oneDNN leave AMX alone; oneDNN reads it once,
// at its first use.
//
// Returns true on such a machine if the variable is not set.
bool needs_amx_left_alone();

// Types for whose products the processor has instructions. LibTorch converts other types to
// float32.
struct FastProducts {
  bool bfloat16 = false;
  bool float16 = false;
};
FastProducts fast_products();

// Sets the variable if needs_amx_left_alone(). Requires: no other thread runs.
void leave_hidden_amx_alone();

}  // namespace fsdp
