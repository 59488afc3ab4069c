#include "kernels/kernel_table.h"

#include "runtime/device.h"

namespace fsdp::kernels {

const KernelTable& kernels_of(const Stream& stream) {
  // The CPU device returns null: its class is in `runtime` and cannot refer to the CPU's table,
  // which is in a higher layer.
  const KernelTable* brought = stream.device().kernels();
  return brought != nullptr ? *brought : cpu_kernels();
}

}  // namespace fsdp::kernels
