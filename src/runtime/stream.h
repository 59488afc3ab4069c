// Streams and events: the order in which work is done on a device.
//
// A stream runs its work in the order of issue. Two streams are ordered only by an event: one
// records it, the other waits for it. The engine's list of waits (docs/streams.md) is written
// against these two classes and nothing else; a device adds an implementation, not a rule.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "base/code_place.h"

namespace fsdp {

class Device;

// A point in a stream's work, as a device represents it.
class EventMark {
 public:
  virtual ~EventMark() = default;
  // Blocks the caller until the point is reached. Errors: rethrows an exception of the recording
  // stream's earlier work.
  virtual void wait() = 0;
  virtual bool reached() = 0;
};

// A handle for a point in a stream's work, created by Device::make_event for the streams of that
// device. Cheap to keep and to record again; only streams record it and wait for it.
class Event {
 public:
  explicit Event(const Device& device) : device_(&device) {}

  // Blocks the caller until the last recorded point is reached. Errors: as Stream::wait.
  void synchronize() const {
    if (mark_) mark_->wait();
  }
  // Returns true if the last recorded point is reached, or if there is none.
  bool reached() const { return !mark_ || mark_->reached(); }

 private:
  friend class Stream;
  const Device* device_;
  std::shared_ptr<EventMark> mark_;  // shared with the streams that record and wait; null: reached
};

// An ordered queue of a device's work.
class Stream {
 public:
  // Requires: `device` lives as long as the stream.
  explicit Stream(const Device& device) : device_(device) {}
  virtual ~Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  const Device& device() const { return device_; }

  // Records the point that the work issued so far ends at; a second call moves the event there.
  // `place` is the caller, as in wait.
  // Errors: StateError if the event is another device's.
  void record(Event& event, CodePlace place = CodePlace::current());
  // Makes work issued after this call wait for the event's last recorded point. An event that was
  // never recorded counts as reached. On an inline stream the caller's thread blocks. `place` is
  // the caller, for a stream that checks the order of work: leave it out.
  // Errors: StateError if the event is another device's; rethrows an exception of the recording
  //   stream's work before that point.
  void wait(const Event& event, CodePlace place = CodePlace::current());
  // Blocks the caller until all issued work is done. Errors: rethrows an exception of that work; a
  // stream whose work threw does nothing more and throws at every wait.
  virtual void synchronize() = 0;
  // Copies `bytes` bytes of device memory to the host, behind the work issued so far, and blocks
  // until the copy is done. Errors: as synchronize.
  virtual void read(void* to, const void* from, int64_t bytes) = 0;
  // Copies `bytes` bytes in stream order, within the device's memory or between it and the host's
  // pinned memory.
  virtual void copy(void* to, const void* from, int64_t bytes) = 0;
  // Returns the handle that other libraries of the device use (a cudaStream_t); null if there is
  // none.
  virtual void* native() const { return nullptr; }
  // Returns true if work is done when the issuing call returns.
  virtual bool is_inline() const = 0;

  // Calls `on_host` on some thread of the host, in stream order; at once if the stream is inline.
  // It must not use the device.
  virtual void call(std::function<void()> on_host) = 0;
  // Calls `tell` with the time (span_clock_ns of runtime/span_log.h) at which the stream reaches
  // this point; then or later, as `call`. For traces: it is not free.
  virtual void tell_time(std::function<void(int64_t ns)> tell) = 0;
  // Keeps `memory` alive until the work issued so far is done.
  void hold(std::shared_ptr<const void> memory) {
    if (!is_inline()) call([held = std::move(memory)] {});
  }

 protected:
  // Returns the new mark; null if it is reached already.
  virtual std::shared_ptr<EventMark> mark(CodePlace place) = 0;
  virtual void wait_for(const std::shared_ptr<EventMark>& mark, CodePlace place) = 0;

 private:
  void require_own(const Event& event) const;

  const Device& device_;
};

}  // namespace fsdp
