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

// A point in a stream's work, as a device keeps it.
class EventMark {
 public:
  virtual ~EventMark() = default;
  // Blocks the caller until the point is reached. Errors: what the recording stream's work threw
  // before it.
  virtual void wait() = 0;
  virtual bool reached() = 0;
};

// A place for a point in a stream's work, made by Device::make_event for the streams of that
// device. Cheap to keep and to re-record; recorded and waited for by streams only.
class Event {
 public:
  explicit Event(const Device& device) : device_(&device) {}

  // Blocks the caller until the last recorded point is reached. Errors: as Stream::wait.
  void synchronize() const {
    if (mark_) mark_->wait();
  }
  // True if the last recorded point is reached, or if there is none.
  bool reached() const { return !mark_ || mark_->reached(); }

 private:
  friend class Stream;
  const Device* device_;
  std::shared_ptr<EventMark> mark_;  // shared with the streams that record and wait; null: reached
};

class Stream {
 public:
  // `device` lives as long.
  explicit Stream(const Device& device) : device_(device) {}
  virtual ~Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  const Device& device() const { return device_; }

  // Marks the point reached by the work issued so far. Re-recording moves the mark.
  // `place` is who records, as in wait.
  // Errors: StateError if the event is another device's.
  void record(Event& event, CodePlace place = CodePlace::current());
  // Work issued after this call starts only once the event's last recorded point is reached.
  // An event never recorded is reached. On an inline stream the caller's thread blocks.
  // `place` is who waits, for a stream that checks the order of work: leave it out.
  // Errors: StateError if the event is another device's; rethrows what the recording stream's work
  //   threw before that point.
  void wait(const Event& event, CodePlace place = CodePlace::current());
  // Blocks the caller until everything issued is done. Errors: rethrows what the work threw; a
  // stream whose work threw runs nothing more and stays in that state.
  virtual void synchronize() = 0;
  // Copies `bytes` bytes of the device's memory to the host, behind the work issued so far, and
  // blocks until they are there. Errors: as synchronize.
  virtual void read(void* to, const void* from, int64_t bytes) = 0;
  // Copies `bytes` bytes in stream order, within the device's memory or from or to pinned memory of
  // the host.
  virtual void copy(void* to, const void* from, int64_t bytes) = 0;
  // By which other libraries of the device know it (a cudaStream_t); null: by nothing.
  virtual void* native() const { return nullptr; }
  // True if work is done by the time the issuing call returns.
  virtual bool is_inline() const = 0;

  // Calls it on some thread of the host, in stream order; at once if the stream is inline. It must
  // not use the device.
  virtual void call(std::function<void()> on_host) = 0;
  // Calls it with the time (span_clock_ns of runtime/span_log.h) at which the stream gets here,
  // then or later, as `call`. For traces: it is not free.
  virtual void tell_time(std::function<void(int64_t ns)> tell) = 0;
  // Keeps `memory` until the work issued so far is done.
  void hold(std::shared_ptr<const void> memory) {
    if (!is_inline()) call([held = std::move(memory)] {});
  }

 protected:
  // The new mark; null if it is reached already.
  virtual std::shared_ptr<EventMark> mark(CodePlace place) = 0;
  virtual void wait_for(const std::shared_ptr<EventMark>& mark, CodePlace place) = 0;

 private:
  void require_own(const Event& event) const;

  const Device& device_;
};

}  // namespace fsdp
