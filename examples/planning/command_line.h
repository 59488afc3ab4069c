// fsdp-plan's command line: what is planned, and what there is for it.
#pragma once

#include <fsdp/run_options.h>

#include <cstdint>
#include <optional>
#include <string>

#include "planning/known_model.h"

namespace planning {

// Bytes that a step takes, or that there are for it.
struct Room {
  int64_t device = 0;  // of a rank
  int64_t host = 0;    // of a host, for all its ranks
};

struct PlanSettings {
  std::string model;
  int ranks = 1;
  int hosts = 1;
  BatchShape batch;
  int64_t memory_bytes = 0;  // of a rank's device; 0: nothing is said
  // Of memory_bytes, for what no plan counts: a GPU's context, NCCL, the allocator's gaps.
  std::optional<int64_t> reserve_bytes;
  int64_t host_memory_bytes = 0;    // of a host, for all its ranks; 0: nothing is said
  double gigabytes_per_second = 0;  // that NCCL's rings carry for a rank, 10^9; 0: nothing is said
  double teraflops_per_second = 0;  // that a rank achieves, of 10^12
  fsdp::RunOptions run;
  std::string help;  // if not empty: print it, do nothing else

  // What the step must fit in; 0 where nothing is said.
  Room room() const;
  int64_t reserve() const;
  bool on_gpus() const { return run.mesh.device == fsdp::DeviceKind::kCuda; }
  int ranks_per_host() const { return ranks / hosts; }
};

// With what the model's usual training says where the command line says nothing.
// Errors: InvalidArgument kUsage, with the nearest flag or name; as find_model.
PlanSettings parse_command_line(int argc, const char* const* argv);

}  // namespace planning
