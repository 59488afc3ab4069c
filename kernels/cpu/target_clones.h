// One source loop, compiled for the instruction sets that matter and chosen when the program
// starts.
#pragma once

// Put before a function whose loops the compiler vectorises; what it calls must be inlined into it
// (FSDP_INLINE), else the callee stays in the baseline instruction set. All versions give the same
// bits: the layer is compiled without floating-point contraction and with no reassociation.
//
// Not under the thread sanitizer: its runtime is not up yet when the loader picks a version, and
// the program would crash before main.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__SANITIZE_THREAD__)
#define FSDP_TARGET_CLONES \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FSDP_TARGET_CLONES
#endif

#define FSDP_INLINE __attribute__((always_inline)) inline

// The same for a lambda: between its parameters and its body.
#define FSDP_INLINE_LAMBDA __attribute__((always_inline))
