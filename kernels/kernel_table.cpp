#include "kernels/kernel_table.h"

#include "runtime/device.h"

namespace fsdp::kernels {

const KernelTable& kernels_of(const Stream& stream) {
  // A device in `runtime` cannot refer to the CPU's table, which is in a higher layer, so null
  // means the CPU's table.
  const KernelTable* brought = stream.device().kernels();
  return brought != nullptr ? *brought : cpu_kernels();
}

}  // namespace fsdp::kernels
