// Ways to run an engine, by the names that the benchmarks' programs take.
#pragma once

#include <fsdp/options.h>

#include <string>
#include <string_view>
#include <vector>

#include "plan/placement.h"

// Returns the names: of the strategies, and of full shard without mapped shards ("gathered"), with
// recomputation and with offload.
inline std::vector<std::string> engine_modes() {
  std::vector<std::string> modes = {"gathered", "recompute", "offload"};
  for (const fsdp::StrategyRow& row : fsdp::strategies()) modes.emplace_back(row.name);
  return modes;
}

inline fsdp::Options options_of_mode(std::string_view mode) {
  fsdp::Options options;
  options.tuning.map_shards = false;
  options.recompute = mode == "recompute" ? 1 : 0;
  options.cpu_offload = mode == "offload";
  for (const fsdp::StrategyRow& row : fsdp::strategies()) {
    if (row.name != mode) continue;
    options.strategy = row.strategy;
    options.tuning.map_shards = true;
  }
  return options;
}
