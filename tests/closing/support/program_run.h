// run_program trains a program for two steps of plain SGD on thread ranks, and compares the result
// with the plain model.
#pragma once

#include <fsdp/options.h>

#include <map>
#include <string>
#include <vector>

#include "closing/support/program_model.h"

namespace fsdp::testing {

struct ProgramRun {
  std::string failure;    // empty if the lists of all ranks are equal and all bits are right
  bool is_finite = true;  // false: a value overflowed; nothing later was compared
  int bound = 0;          // most units bound at once, with the root
  int gathers = 0, reduces = 0;
  int fired_calls = 0;                    // by rank 0, in backward
  std::map<std::string, int> reduces_of;  // by unit
};

inline constexpr int kProgramSteps = 2;
inline constexpr int kProgramRanks = 3;  // ranks that differ; a fourth rank does the same as rank 0

// Runs the forwards and the backwards of one step. Returns the losses.
std::vector<float> run_plan(ProgramModel& model);

// Returns true if plain LibTorch runs the program on every rank and its gradients are finite.
bool is_valid(const Program& program, Boundaries boundaries = Boundaries::kUnits);
// Runs the program on three ranks, or on two groups of two ranks if the strategy has groups. If
// Options::units is set, the model's bodies are plain modules (program_model.h).
ProgramRun run_program(const Program& program, Options options);

}  // namespace fsdp::testing
