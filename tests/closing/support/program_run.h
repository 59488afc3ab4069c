// Trains a program for two steps of plain SGD on thread ranks, and holds it against the plain
// model.
#pragma once

#include <fsdp/options.h>

#include <map>
#include <string>
#include <vector>

#include "closing/support/program_model.h"

namespace fsdp::testing {

struct ProgramRun {
  std::string failure;    // empty if the lists of all ranks are equal and all bits are right
  bool is_finite = true;  // false: numbers overflowed, nothing was compared from there on
  int bound = 0;          // most units seated at once, the root among them
  int gathers = 0, reduces = 0;
  int fired_calls = 0;                    // of rank 0, in backward
  std::map<std::string, int> reduces_of;  // by unit
};

inline constexpr int kProgramSteps = 2;
inline constexpr int kProgramRanks = 3;  // that do different things; a fourth does what rank 0 does

// The forwards and backwards of a step; returns the losses.
std::vector<float> run_plan(ProgramModel& model);

// True if plain LibTorch runs the program on every rank and its gradients are finite.
bool is_valid(const Program& program, Boundaries boundaries = Boundaries::kUnits);
// With Options::units the model's bodies are plain (program_model.h). On three ranks, or on two
// groups of two if the options' strategy is one of groups.
ProgramRun run_program(const Program& program, Options options);

}  // namespace fsdp::testing
