// Defines macros that compile one source loop for several instruction sets. The loader chooses the
// version when the program starts.
#pragma once

// Put FSDP_TARGET_CLONES before a function whose loops the compiler vectorises. Functions that it
// calls must be inlined into it (FSDP_INLINE), because a function that is not inlined is compiled
// only for the baseline instruction set. All versions give the same bits, because the kernels are
// compiled without reassociation and without contraction. Only grad_norm.cpp allows contraction,
// because its products are exact.
//
// The macro is empty under the thread sanitizer, because the loader would choose a version before
// the sanitizer's runtime is initialised, and the program would crash before main.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__SANITIZE_THREAD__)
#define FSDP_TARGET_CLONES \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FSDP_TARGET_CLONES
#endif

#define FSDP_INLINE __attribute__((always_inline)) inline

// FSDP_INLINE for a lambda; put it between the parameters and the body.
#define FSDP_INLINE_LAMBDA __attribute__((always_inline))
