#include "runtime/stream.h"

#include <fmt/format.h>

#include "fsdp/error.h"
#include "runtime/device.h"

namespace fsdp {

void Stream::require_own(const Event& event) const {
  if (event.device_ == &device_) return;
  throw StateError({.what = fmt::format("a stream of {} was given an event of {}", device_.name(),
                                        event.device_->name()),
                    .cause = "streams of two devices are ordered by the host, not by an event",
                    .hint = "make the event with the stream's own device"});
}

void Stream::record(Event& event, CodePlace place) {
  require_own(event);
  // A new mark: streams that wait already hold the former one, so an event may be recorded again.
  event.mark_ = mark(place);
}

void Stream::wait(const Event& event, CodePlace place) {
  require_own(event);
  // Null: never recorded, or recorded on a stream whose work was done at once.
  if (event.mark_) wait_for(event.mark_, place);
}

}  // namespace fsdp
