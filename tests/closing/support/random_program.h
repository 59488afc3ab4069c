// random_program makes a program from a seed.
#pragma once

#include <cstdint>

#include "closing/support/program.h"

namespace fsdp::testing {

// Makes a program with: units of several inputs and outputs, repeated, nested up to three deep,
// recomputed or returning their inputs; views and in-place changes; weights and outputs used on
// some ranks only; skipped units; several forwards and backwards; backwards that throw before a
// step; a second engine that trains a copy; names of 10 to 200 bytes. The calls that fire are the
// same on every rank. With layers_of_unit > 1 ranks leave out calls of some parts, as long as that
// holds. The program may be invalid in plain LibTorch (an in-place change of a tensor that autograd
// has saved): is_valid in program_run.h.
Program random_program(uint64_t seed, Boundaries boundaries = Boundaries::kUnits,
                       int layers_of_unit = 1);

// The number of programs that a test runs, and the seed of the first. A longer run takes `of_long_run`,
// an ordinary one a fifth. FSDP_FUZZ_PROGRAMS sets another number, FSDP_FUZZ_SEED the first seed (to
// repeat one failure).
struct FuzzRange {
  int64_t wanted = 0;
  int64_t first = 1;
};
FuzzRange fuzz_range(int64_t of_long_run);

}  // namespace fsdp::testing
