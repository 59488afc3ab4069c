// random_program generates a program from a seed.
#pragma once

#include <cstdint>

#include "closing/support/program.h"

namespace fsdp::testing {

// Generates a program. Its units have several inputs and outputs. They are repeated, nested up to
// three deep, recomputed, skipped, or return their inputs. The program contains views and in-place
// changes, weights and outputs that only some ranks use, and several forwards and backwards a step.
// A backward may throw before a step, and a second engine may train a copy of the model. Names have
// 10 to 200 bytes.
// The calls that fire are the same on every rank. If layers_of_unit > 1, ranks omit calls of some
// parts as long as this remains true.
// The program may be invalid in plain LibTorch, for example if it changes a tensor in place that
// autograd has saved. is_valid (program_run.h) detects this.
Program random_program(uint64_t seed, Boundaries boundaries = Boundaries::kUnits,
                       int layers_of_unit = 1);

// The number of programs that a test runs, and the seed of the first. A long run has `of_long_run`
// programs, and an ordinary run has a fifth of them. FSDP_FUZZ_PROGRAMS overrides the number, and
// FSDP_FUZZ_SEED the first seed, for example to repeat one failure.
struct FuzzRange {
  int64_t wanted = 0;
  int64_t first = 1;
};
FuzzRange fuzz_range(int64_t of_long_run);

}  // namespace fsdp::testing
