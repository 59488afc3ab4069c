// What the processor says it can do and cannot.
#pragma once

namespace fsdp {

// [Note: tiles that are hidden]
// Some virtual machines announce AMX but hide the description of its tiles (CPUID leaf 0x1D is
// empty). LibTorch's oneDNN then configures no tile, and its first matrix product in bfloat16 or
// float16 dies of SIGILL. ONEDNN_MAX_CPU_ISA makes it leave AMX alone; it is read once, when oneDNN
// is first used. True on such a machine where the variable is not set.
bool needs_amx_left_alone();

// Types for whose products the processor has instructions. LibTorch converts the others to
// float32.
struct FastProducts {
  bool bfloat16 = false;
  bool float16 = false;
};
FastProducts fast_products();

// Sets the variable there. Requires: no other thread runs.
void leave_hidden_amx_alone();

}  // namespace fsdp
