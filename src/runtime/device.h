// What computes: its streams, its events, its memory. What only one kind of device can do is a
// member of its class alone; who above this layer names a kind is listed in docs/add-a-device.md.
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
  // Before others where work of several streams could start. Devices without priorities have one.
  StreamPriority priority = StreamPriority::kNormal;
  // Work runs beside the thread that issues it. false: at once in that thread, if the device can
  // (see Stream::is_inline).
  bool runs_beside = true;
};

// Lives as long as its streams, events and buffers. Thread-safe.
class Device {
 public:
  virtual ~Device() = default;
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  virtual std::string_view name() const = 0;  // "cpu", "cuda:0"
  // Other libraries of the device that the calling thread calls from now on mean this one.
  virtual void make_current() const {}
  virtual std::unique_ptr<Stream> make_stream(const StreamOptions& options) const = 0;
  // On which LibTorch's operators of the calling thread run. `native` is LibTorch's handle of it
  // where it has one (null: the device's default stream); the host's is always the thread itself.
  virtual Stream& compute_stream(void* native = nullptr) const = 0;
  Event make_event() const { return Event(*this); }
  // Where something failed, before memory goes that streams, whoever's, may still work on: blocks
  // until they have done what they were given. Nothing on a device whose streams are done then.
  virtual void drain() const noexcept {}
  // What its streams were given is worth nothing any more, as a peer is gone on whose work it
  // rested: from now on who waits for it on the host (Stream::synchronize and read, an event's
  // synchronize) gets `why`, once the wait is over. The first one stays. Thread-safe.
  // On a device whose work fails in its streams, which is where waits hear of it: nothing.
  virtual void fail_waits(const std::exception_ptr& why) const noexcept { static_cast<void>(why); }
  // Zeroed, aligned to 64 bytes. 0 bytes: an empty buffer.
  // Errors: DeviceError with the size when there is no memory left.
  virtual Buffer allocate(int64_t bytes, MemoryKind kind) const = 0;
  // The kernels that came with the device; null: the host's own, which are part of the library.
  virtual const kernels::KernelTable* kernels() const = 0;
};

// The host as a device: all its memory is of kind kHost, whatever is asked for. It has no state.
const Device& cpu_device();

}  // namespace fsdp
