// The kernels of a device without memory whose work takes virtual time.
#pragma once

#include "kernels/kernel_table.h"

namespace fsdp {

// Returns kernels that access no memory. Each takes the time in which its bytes are read and
// written. Requires: the streams are TimedStreams.
const kernels::KernelTable& timed_kernels();

}  // namespace fsdp
