#include "runtime/stream.h"

#include <fmt/format.h>

#include "fsdp/error.h"
#include "runtime/device.h"

namespace fsdp {

void Stream::require_own(const Event& event) const {
  if (event.device_ == &device_) return;
  throw StateError(
      {.what =
           fmt::format("a stream of {} got an event of {}", device_.name(), event.device_->name()),
       .cause = "an event orders only streams of one device",
       .hint = "create the event on the stream's device; to wait for another device, synchronize "
               "its stream on the host"});
}

void Stream::record(Event& event, CodePlace place) {
  require_own(event);
  // An event may be recorded again, so each record creates a new mark. Streams that already wait
  // still hold the former mark.
  event.mark_ = mark(place);
}

void Stream::wait(const Event& event, CodePlace place) {
  require_own(event);
  // If the event was never recorded, or if the recording stream is inline, the mark is null and
  // there is nothing to wait for.
  if (event.mark_) wait_for(event.mark_, place);
}

}  // namespace fsdp
