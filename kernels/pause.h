// Reads a device's clock and delays a stream by it, so that a collective between ranks of one
// device takes as long as over a slower link (tests/support/wire).
//
// A host function would block a thread of the driver. If the host itself waited, it could not issue
// further steps ahead. So kernels of one thread read the clock and wait. Such a kernel sleeps and
// waits for no other work, so no order of streams can deadlock the device. It occupies one thread
// of a multiprocessor and none of its arithmetic units.
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

// Blocks the stream until `ns` nanoseconds after the latest mark; not at all if they have passed.
// `marks` is device memory, read in stream order. The call does not copy it.
// Errors: InvalidArgument without a mark, and for a negative time.
void pause_since(Stream& stream, std::span<const int64_t> marks, int64_t ns);

}  // namespace fsdp::kernels
