#include "kernels/support/elements.h"
#include "kernels/support/streams.h"
#include "kernels_simulated/support/simulated_kernels.h"

namespace fsdp::test {

const Device& kernel_device() { return simulated_device(); }

// The largest size has several blocks. A million elements would take minutes.
const std::vector<int64_t> kSizes{0, 1, 3, 7, 31, 32, 65, 1009, 4096, 4097, 3 * 4096 + 5};

}  // namespace fsdp::test
