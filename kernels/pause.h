// The device's clock, and a stream that waits by it: how a collective between ranks of one device
// takes the time of a slower wire (tests/support/wire).
//
// A host function would hold up a thread of the driver, and the host cannot wait in the device's
// stead without stopping the steps that it issues ahead. So the clock is read and waited for by
// kernels of one thread. Such a kernel sleeps by itself and waits for no other's work, so that no
// order of streams can stop the device, and it takes a thread of a multiprocessor, not its units.
#pragma once

#include <cstdint>
#include <span>

namespace fsdp {
class Stream;
}

namespace fsdp::kernels {

// Writes the time at which the stream gets here, in nanoseconds of the device's clock, which starts
// anywhere and is one for all streams of the device. A GPU's advances in steps of up to a
// microsecond.
void mark_time(Stream& stream, int64_t* ns);

// Lets the stream pass once `ns` nanoseconds have gone by since the latest mark, at once if they
// have. `marks` lie in the device's memory, read in stream order; 1 at least. `ns` is not negative.
// Errors: InvalidArgument without a mark, and for a negative time.
void pause_since(Stream& stream, std::span<const int64_t> marks, int64_t ns);

}  // namespace fsdp::kernels
