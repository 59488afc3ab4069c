// Parses fsdp-plan's command line. It describes the run to plan and the available memory.
#pragma once

#include <fsdp/run_options.h>

#include <cstdint>
#include <optional>
#include <string>

#include "planning/known_model.h"

namespace planning {

// A number of bytes that a step needs, or that is available to it.
struct Room {
  int64_t device = 0;  // of a rank
  int64_t host = 0;    // of a host, for all its ranks
};

// The parsed command line.
struct PlanSettings {
  std::string model;
  int ranks = 1;
  int hosts = 1;
  BatchShape batch;
  int64_t memory_bytes = 0;  // of a rank's device; 0: unknown
  // The part of memory_bytes that no plan counts: a GPU's context, NCCL, and gaps in the allocator.
  std::optional<int64_t> reserve_bytes;
  int64_t host_memory_bytes = 0;    // of a host, for all its ranks; 0: unknown
  double gigabytes_per_second = 0;  // NCCL's bus bandwidth of a rank, in 10^9; 0: unknown
  double teraflops_per_second = 0;  // achieved by a rank, in 10^12
  bool ema = false;                 // the run has an fsdp::Ema
  bool save = false;                // the plan includes the size of a checkpoint
  fsdp::RunOptions run;
  std::string help;  // if not empty, the program prints it and ends

  // Returns the memory in which the step must fit. 0: unknown.
  Room room() const;
  int64_t reserve() const;
  bool on_gpus() const { return run.mesh.device == fsdp::DeviceKind::kCuda; }
  int ranks_per_host() const { return ranks / hosts; }
};

// Parses the command line. Values that are not given are those of the model's usual training.
// Errors: InvalidArgument kUsage, which suggests the nearest flag or name; the errors of
//   find_model.
PlanSettings parse_command_line(int argc, const char* const* argv);

}  // namespace planning
