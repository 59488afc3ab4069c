// The memory of GPUs, by names for the command line.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string_view>

namespace planning {

struct KnownGpu {
  std::string_view name;
  int64_t mebibytes;  // as nvidia-smi shows
};
inline constexpr KnownGpu kGpus[] = {{"h100", 81559},    {"h200", 143771},   {"b200", 183359},
                                     {"a100-80", 81920}, {"a100-40", 40960}, {"v100-32", 32768},
                                     {"v100-16", 16384}, {"l40s", 46068},    {"l4", 23034},
                                     {"t4", 15360},      {"rtx4090", 24564}, {"rtx3090", 24576}};

// Returns nullptr if the name is not known.
inline const KnownGpu* find_gpu(std::string_view name) {
  const auto* gpu = std::ranges::find(kGpus, name, &KnownGpu::name);
  return gpu == std::end(kGpus) ? nullptr : gpu;
}

}  // namespace planning
