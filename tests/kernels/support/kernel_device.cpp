#include "kernels/support/streams.h"

namespace fsdp::test {

const Device& kernel_device() { return cpu_device(); }

}  // namespace fsdp::test
