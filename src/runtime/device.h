// Device: creates streams and events and allocates memory. Features of one kind of device are
// members of its class alone; docs/add-a-device.md lists the code above this layer that names a
// kind.
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
  kHost,    // any thread of the host reads and writes it
  kPinned,  // the host's, and copied to and from the device beside other work
  kDevice,  // only work of the device's streams may touch it
};
std::string_view name_of(MemoryKind kind);

enum class StreamPriority : uint8_t { kNormal, kHigh };

struct StreamOptions {
  std::string name;  // shown by debuggers and traces
  // Its work precedes other work if work of several streams could start. Devices without priorities
  // ignore it.
  StreamPriority priority = StreamPriority::kNormal;
  // true: work runs beside the thread that issues it. false: at once in that thread, if the device
  // can (see Stream::is_inline).
  bool runs_beside = true;
};

// A device. It outlives its streams, events and buffers. Thread-safe.
class Device {
 public:
  virtual ~Device() = default;
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  virtual std::string_view name() const = 0;  // "cpu", "cuda:0"
  // Makes it current for the device's other libraries (CUDA, LibTorch) in the calling thread.
  virtual void make_current() const {}
  virtual std::unique_ptr<Stream> make_stream(const StreamOptions& options) const = 0;
  // Returns the stream on which LibTorch's operators of the calling thread run. `native` is
  // LibTorch's handle of it, if there is one (null: the device's default stream). The host's is
  // always the thread itself.
  virtual Stream& compute_stream(void* native = nullptr) const = 0;
  Event make_event() const { return Event(*this); }
  // Blocks until all streams of the device have done what was issued to them, other engines'
  // streams too. For error paths, before memory is freed that a stream may still use. Does nothing
  // on a device whose streams are done by then.
  virtual void drain() const noexcept {}
  // Makes host waits on this device (Stream::synchronize and read, an event's synchronize) throw
  // `why`, pending ones too, once the wait is over: a peer died, so results that depend on its data
  // are worthless. The first call counts. Thread-safe.
  // Does nothing on a device whose failures occur in its streams: their waits throw anyway.
  virtual void fail_waits(const std::exception_ptr& why) const noexcept { static_cast<void>(why); }
  // Allocates zeroed memory, aligned to 64 bytes. 0 bytes: an empty buffer.
  // Errors: DeviceError with the size if no memory is left.
  virtual Buffer allocate(int64_t bytes, MemoryKind kind) const = 0;
  // Returns the device's own kernels; null: the host's, which are part of the library.
  virtual const kernels::KernelTable* kernels() const = 0;
};

// Returns the host as a device. It has no state, and all its memory is of kind kHost, whatever kind
// is requested.
const Device& cpu_device();

}  // namespace fsdp
