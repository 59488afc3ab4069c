// Detects the CPUs that a process may use and their features for matrix products.
#pragma once

namespace fsdp {

// [Note: tiles that are hidden] Some virtual machines announce AMX but hide the description of its
// tiles: CPUID leaf 0x1D is empty. LibTorch's oneDNN then configures no tile, and its first matrix
// product in bfloat16 or float16 ends with SIGILL. The environment variable ONEDNN_MAX_CPU_ISA can
// keep oneDNN from using AMX. oneDNN reads this variable only once, at its first use.
//
// Returns true if this machine hides the tiles and the variable is not set.
bool needs_amx_left_alone();

// The types for which the processor has instructions for matrix products. Before a product in
// another type, LibTorch converts the operands to float32.
struct FastProducts {
  bool bfloat16 = false;
  bool float16 = false;
};
FastProducts fast_products();

// Returns the number of CPUs that the calling thread may use.
int usable_cores();

// Sets ONEDNN_MAX_CPU_ISA if needs_amx_left_alone(). Requires: no other thread runs.
void leave_hidden_amx_alone();

}  // namespace fsdp
