// Kernel calls whose result bits are compared between devices.
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
  // `base` is the address at which the operands of this call begin.
  std::function<void(Stream& stream, std::byte* base)> call;
};

std::vector<KernelCase> kernel_cases();

}  // namespace fsdp::test
