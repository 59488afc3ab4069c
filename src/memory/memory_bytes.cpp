#include <numeric>

#include "fsdp/memory.h"

namespace fsdp {

std::string_view name_of(MemoryCategory category) {
  switch (category) {
    case MemoryCategory::kMainShards:
      return "main shards";
    case MemoryCategory::kMainGradients:
      return "main gradients";
    case MemoryCategory::kOptimizerState:
      return "optimizer state";
    case MemoryCategory::kResidentParameters:
      return "resident parameters";
    case MemoryCategory::kParameterSlots:
      return "parameter slots";
    case MemoryCategory::kReduceSlots:
      return "reduce slots";
    case MemoryCategory::kCheckpointStaging:
      return "checkpoint staging";
  }
  return "unknown";
}

int64_t MemoryBytes::total() const {
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
}

}  // namespace fsdp
