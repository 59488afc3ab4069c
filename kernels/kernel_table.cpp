#include "kernels/kernel_table.h"

#include "runtime/device.h"

namespace fsdp::kernels {

const KernelTable& kernels_of(const Stream& stream) {
  // A device of `runtime` cannot name the CPU's table, which is in a layer above: null stands for
  // it.
  const KernelTable* brought = stream.device().kernels();
  return brought != nullptr ? *brought : cpu_kernels();
}

}  // namespace fsdp::kernels
