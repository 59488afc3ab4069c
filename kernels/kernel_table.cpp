#include "kernels/kernel_table.h"

#include "runtime/device.h"

namespace fsdp::kernels {

const KernelTable& kernels_of(const Stream& stream) {
  const KernelTable* brought = stream.device().kernels();
  return brought != nullptr ? *brought : cpu_kernels();
}

}  // namespace fsdp::kernels
