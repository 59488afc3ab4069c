#include "kernels/kernel_table.h"

#include "runtime/device.h"

namespace fsdp::kernels {

const KernelTable& kernels_of(const Stream& stream) {
  // Null means the CPU's table: the class of the CPU device is in `runtime`, so it cannot refer to
  // this table, which is in a higher layer.
  const KernelTable* brought = stream.device().kernels();
  return brought != nullptr ? *brought : cpu_kernels();
}

}  // namespace fsdp::kernels
