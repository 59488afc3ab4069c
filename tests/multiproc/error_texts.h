// Error texts that several tests of this layer compare.
#pragma once

#include <fmt/format.h>

#include <string>

namespace fsdp::testing {

inline std::string two_processes(int rank) {
  return fmt::format("two processes have RANK={}: pid ", rank);
}

// The error of ranks on the CPUs of several hosts in a program without LibTorch.
inline constexpr const char* kNoGloo =
    "ranks on CPUs of several hosts cannot connect: the program does not link Gloo";

}  // namespace fsdp::testing
