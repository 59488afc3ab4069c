// Streams and events: the order in which work is done on a device.
//
// A stream runs its work in the order of issue. Two streams are ordered only by an event: one
// stream records it and the other waits for it. docs/streams.md lists the engine's waits in terms
// of streams and events only. A new kind of device implements Stream and EventMark, and adds no
// other rules of order.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "base/code_place.h"

namespace fsdp {

class Device;

// A point in a stream's work, in the device's own representation.
class EventMark {
 public:
  virtual ~EventMark() = default;
  // Blocks the caller until the point is reached.
  // Errors: rethrows an exception of earlier work on the recording stream.
  virtual void wait() = 0;
  virtual bool reached() = 0;
};

// A handle for a point in a stream's work. Device::make_event creates an event for the streams of
// that device. An event is cheap to keep and to record again. Events are recorded by
// Stream::record; Stream::wait waits for them.
class Event {
 public:
  explicit Event(const Device& device) : device_(&device) {}

  // Blocks the caller until the last recorded point is reached. Errors: the same as those of
  // EventMark::wait.
  void synchronize() const {
    if (mark_) mark_->wait();
  }
  // Returns true if the last recorded point is reached, or if no point was recorded.
  bool reached() const { return !mark_ || mark_->reached(); }

 private:
  friend class Stream;
  const Device* device_;
  std::shared_ptr<EventMark> mark_;  // shared with the streams that record and wait; null: reached
};

// An ordered queue of work on a device.
class Stream {
 public:
  // Requires: `device` outlives the stream.
  explicit Stream(const Device& device) : device_(device) {}
  virtual ~Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  const Device& device() const { return device_; }

  // Records the end of the work issued so far in the event. A second call replaces the recorded
  // point. `place` has the same meaning as for wait.
  // Errors: StateError if the event belongs to another device.
  void record(Event& event, CodePlace place = CodePlace::current());
  // Makes work issued after this call wait for the event's last recorded point. An event that was
  // never recorded counts as reached. On an inline stream this call blocks the caller's thread.
  // `place` is the caller's position in the source, for streams that check the order of work.
  // Callers omit this argument.
  // Errors: StateError if the event belongs to another device. Rethrows an exception that the
  //   recording stream's work threw before the recorded point.
  void wait(const Event& event, CodePlace place = CodePlace::current());
  // Blocks the caller until all issued work is done.
  // Errors: rethrows an exception of that work. After some work of a stream has thrown, the stream
  //   does no more work, and every wait for the stream throws.
  virtual void synchronize() = 0;
  // Copies `bytes` bytes of device memory to the host, after the work issued so far. Blocks until
  // the copy is done.
  // Errors: the same as those of synchronize.
  virtual void read(void* to, const void* from, int64_t bytes) = 0;
  // Copies `bytes` bytes in stream order, within device memory or between device memory and pinned
  // host memory.
  virtual void copy(void* to, const void* from, int64_t bytes) = 0;
  // Returns the stream's handle for other libraries of the device (a cudaStream_t), or null if
  // there is no handle.
  virtual void* native() const { return nullptr; }
  // Returns true if work is done before the issuing call returns.
  virtual bool is_inline() const = 0;

  // Calls `on_host` on some host thread, in stream order. An inline stream calls `on_host` at once.
  // `on_host` must not use the device.
  virtual void call(std::function<void()> on_host) = 0;
  // Calls `tell` with the time at which the stream reaches this point (span_clock_ns of
  // runtime/span_log.h). `tell` runs at that time or later, as in call(). Only traces use this
  // function, because it is expensive.
  virtual void tell_time(std::function<void(int64_t ns)> tell) = 0;
  // Keeps a reference to `memory` until the work issued so far is done.
  void hold(std::shared_ptr<const void> memory) {
    if (!is_inline()) call([held = std::move(memory)] {});
  }

 protected:
  // Marks the end of the work issued so far, as cudaEventRecord does. Returns null if all of that
  // work is done.
  virtual std::shared_ptr<EventMark> mark(CodePlace place) = 0;
  virtual void wait_for(const std::shared_ptr<EventMark>& mark, CodePlace place) = 0;

 private:
  void require_own(const Event& event) const;

  const Device& device_;
};

}  // namespace fsdp
