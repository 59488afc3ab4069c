// Error texts that several tests of this layer compare.
#pragma once

#include <fmt/format.h>

#include <string>

namespace fsdp::testing {

inline std::string two_processes(int rank) {
  return fmt::format("two processes have RANK={}: pid ", rank);
}

// The error of ranks on several hosts that compute on the CPU.
inline std::string no_gpu_each(int ranks, int on_this_host) {
  return fmt::format(
      "ranks on several hosts need a GPU each, but these {} ranks ({} on this host) "
      "compute on the CPU",
      ranks, on_this_host);
}

}  // namespace fsdp::testing
