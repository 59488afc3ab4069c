#include "kernels/support/elements.h"
#include "kernels/support/streams.h"

namespace fsdp::test {

const Device& kernel_device() { return cpu_device(); }

const std::vector<int64_t> kSizes{0, 1, 3, 31, 32, 65, 1009, (1 << 20) + 1};

}  // namespace fsdp::test
