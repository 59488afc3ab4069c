// Parses fsdp-plan's command line. It describes the run to plan and the available memory.
#pragma once

#include <fsdp/rates.h>
#include <fsdp/run_options.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

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
  int ranks = 1;  // of the first run, if the flags list several
  int hosts = 1;
  BatchShape batch;
  // Several runs, which are printed as a table. `hosts_of` has one number, or one for each of
  // `ranks_of`.
  std::vector<int> ranks_of{1}, hosts_of{1};
  bool all_strategies = false;
  bool largest_batch = false;  // each run has the largest batch with which it fits
  bool json = false;           // the table is lines of JSON
  // The words of the command line, without the flags that choose a row of the table.
  std::vector<std::string> common_words;
  std::string gpu;           // a name that known_gpus.h lists, or empty
  int64_t memory_bytes = 0;  // of a rank's device; 0: unknown
  // The part of memory_bytes that no plan counts: a GPU's context, NCCL, and gaps in the allocator.
  std::optional<int64_t> reserve_bytes;
  int64_t host_memory_bytes = 0;      // of a host, for all its ranks; 0: unknown
  double gigabytes_per_second = 0;    // NCCL's bus bandwidth of a rank, in 10^9; 0: unknown
  double teraflops_per_second = 0;    // achieved by a rank, in 10^12
  std::optional<fsdp::Rates> rates;   // --time: the plan includes the time of the step
  bool time_of_gpu = false;           // --time without a value: the rates are those of --gpu
  std::filesystem::path links_file;   // fsdp-doctor's report of the links between hosts
  std::filesystem::path trace_file;   // of the planned step; empty: none
  double dollars_per_hour = 0;        // of a GPU; 0: not given
  double watts = 0;                   // of a GPU with its part of the host; 0: not given
  std::string optim = "adamw_torch";  // a name of named_optimizer.h
  bool ema = false;                   // the run has an fsdp::Ema
  bool save = false;                  // the plan includes the size of a checkpoint
  fsdp::RunOptions run;
  std::string help;  // if not empty, the program prints it and ends

  // Returns the memory in which the step must fit. 0: unknown.
  Room room() const;
  int64_t reserve() const;
  bool is_table() const { return ranks_of.size() > 1 || all_strategies || largest_batch || json; }
  int hosts_with(size_t i) const { return hosts_of[hosts_of.size() > 1 ? i : 0]; }
  int most_hosts() const { return *std::ranges::max_element(hosts_of); }
  bool on_gpus() const { return run.mesh.device == fsdp::DeviceKind::kCuda; }
  int ranks_per_host() const { return ranks / hosts; }
};

// Parses the command line. Values that are not given are those of the model's usual training.
// Errors: InvalidArgument kUsage, which suggests the nearest flag or name; the errors of
//   find_model.
PlanSettings parse_command_line(int argc, const char* const* argv);

}  // namespace planning
