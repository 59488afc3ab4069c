// Delays a stream by the device's clock. Tests use this to let a collective between ranks that
// share a device take as long as over a slower link (tests/support/wire).
//
// The delay is a kernel with one thread that reads the clock and waits. The alternatives are worse:
// a host function would block a thread of the driver, and a host that waits could not issue work
// ahead. The kernel sleeps between two reads of the clock. It depends on no other work, so no order
// of streams can deadlock the device. It occupies one thread of a multiprocessor and no arithmetic
// units.
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

// Blocks the stream until `ns` nanoseconds after the latest time in `marks`. If that moment has
// already passed, the call does not block the stream. `marks` is device memory, read in stream
// order. The call does not copy it.
// Errors: InvalidArgument if `marks` is empty, or if `ns` is negative.
void pause_since(Stream& stream, std::span<const int64_t> marks, int64_t ns);

}  // namespace fsdp::kernels
