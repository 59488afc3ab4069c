// Calls of kernels whose bits are compared between devices.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "kernels_simulated/support/arena.h"
#include "runtime/stream.h"

namespace fsdp::test {

struct KernelCase {
  std::string name;
  Arena operands;
  // `base`: the operands' base address in this call.
  std::function<void(Stream& stream, std::byte* base)> call;
};

std::vector<KernelCase> kernel_cases();

}  // namespace fsdp::test
