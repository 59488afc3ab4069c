#include "runtime/stream.h"

#include <fmt/format.h>

#include "fsdp/error.h"
#include "runtime/device.h"

namespace fsdp {

void Stream::require_own(const Event& event) const {
  if (event.device_ == &device_) return;
  throw StateError({.what = fmt::format("a stream of {} got an event of {}", device_.name(),
                                        event.device_->name()),
                    .cause = "streams of two devices are ordered by the host, not by an event",
                    .hint = "make the event with the stream's own device"});
}

void Stream::record(Event& event, CodePlace place) {
  require_own(event);
  // A new mark is created. Streams that already wait hold the former mark, so an event may be
  // recorded again.
  event.mark_ = mark(place);
}

void Stream::wait(const Event& event, CodePlace place) {
  require_own(event);
  // The mark is null if the event was never recorded, or if the recording stream did its work at
  // once.
  if (event.mark_) wait_for(event.mark_, place);
}

}  // namespace fsdp
