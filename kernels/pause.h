// Reads a device's clock and delays a stream by it. So a collective between ranks that share a
// device can take as long as over a slower link (tests/support/wire).
//
// A host function would block a thread of the driver. If the host waited itself, it could not issue
// work ahead. So kernels with one thread read the clock and wait. Such a kernel sleeps and waits
// for no other work, so no order of streams can deadlock the device. It occupies one thread of a
// multiprocessor and no arithmetic units.
#pragma once

#include <cstdint>
#include <span>

namespace fsdp {
class Stream;
}

namespace fsdp::kernels {

// Writes the time at which the stream reaches this call, in nanoseconds of the device's clock. The
// clock has no defined zero and is the same for all streams of the device. A GPU's clock advances
// in steps of up to a microsecond.
void mark_time(Stream& stream, int64_t* ns);

// Blocks the stream until `ns` nanoseconds after the latest mark. If they have passed, it does not
// block. `marks` is device memory, read in stream order. The call does not copy it.
// Errors: InvalidArgument if there is no mark, or if the time is negative.
void pause_since(Stream& stream, std::span<const int64_t> marks, int64_t ns);

}  // namespace fsdp::kernels
