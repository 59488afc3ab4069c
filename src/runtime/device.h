// Device: creates streams and events and allocates memory. A feature that only one kind of device
// has is a member of that device's class. docs/add-a-device.md lists the code in higher layers that
// depends on the kind of device.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <string_view>

#include "runtime/buffer.h"
#include "runtime/stream.h"

namespace fsdp {

namespace kernels {
struct KernelTable;
}

enum class MemoryKind : uint8_t {
  kHost,    // any host thread can read and write it
  kPinned,  // host memory; copies to and from the device can overlap with other work
  kDevice,  // only work on the device's streams may access it
};
std::string_view name_of(MemoryKind kind);

enum class StreamPriority : uint8_t { kNormal, kHigh };

struct StreamOptions {
  std::string name;  // shown in debuggers and traces
  // If work of several streams can start, the device starts the work of the stream with the highest
  // priority first. Devices without priorities ignore this option.
  StreamPriority priority = StreamPriority::kNormal;
  // true: the work runs concurrently with the thread that issues it. false: the work runs at once
  // in that thread, if the device supports it (see Stream::is_inline).
  bool runs_beside = true;
};

// A device. It must outlive its streams, events and buffers. Thread-safe.
class Device {
 public:
  virtual ~Device() = default;
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  virtual std::string_view name() const = 0;  // "cpu", "cuda:0"
  // Makes this device the current device of the calling thread in other libraries (CUDA, LibTorch).
  virtual void make_current() const {}
  virtual std::unique_ptr<Stream> make_stream(const StreamOptions& options) const = 0;
  // Returns the stream on which LibTorch's operators of the calling thread run. `native` is
  // LibTorch's handle of that stream; null means the device's default stream. The host's compute
  // stream is always inline.
  virtual Stream& compute_stream(void* native = nullptr) const = 0;
  Event make_event() const { return Event(*this); }
  // Blocks until all streams of the device have done their issued work, including streams of other
  // engines. Error paths call this function before they free memory that a stream may still use. It
  // does nothing on a device whose streams never have pending work at that time.
  virtual void drain() const noexcept {}
  // Makes host waits on this device throw `why`: Stream::synchronize, Stream::read and an event's
  // synchronize. Pending waits throw `why` when they end. Call this function when another rank has
  // died, because results that depend on that rank's data are wrong. Only the first call has an
  // effect. Thread-safe. This function does nothing on a device whose streams throw the failure
  // themselves, because waits on these streams then throw anyway.
  virtual void fail_waits(const std::exception_ptr& why) const noexcept { static_cast<void>(why); }
  // Allocates zeroed memory, aligned to 64 bytes. Returns an empty buffer for 0 bytes.
  // Errors: DeviceError if no memory is left. The error names the size.
  virtual Buffer allocate(int64_t bytes, MemoryKind kind) const = 0;
  // Returns the device's own kernels, or null if the device uses the CPU kernels, which are part of
  // the library.
  virtual const kernels::KernelTable* kernels() const = 0;
};

// Returns the host as a device. It has no state. All its memory is of kind kHost, even if another
// kind is requested.
const Device& cpu_device();

}  // namespace fsdp
