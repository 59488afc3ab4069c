#include "shard/main_state_hold.h"

#include <exception>

#include "runtime/device.h"
#include "runtime/span_log.h"

namespace fsdp {

MainStateHold::~MainStateHold() {
  if (!stream_) return;
  try {
    stream_->synchronize();
  } catch (const std::exception&) {  // later waits for the device report the error
  }
}

void MainStateHold::copy(void* to, const void* from, int64_t bytes) {
  if (!stream_) stream_ = main_.stream().device().make_stream({.name = "checkpoint"});
  if (!has_begun_) {
    Event written(main_.stream().device());
    main_.stream().record(written);
    stream_->wait(written);  // wait 21
    has_begun_ = true;
  }
  stream_->copy(to, from, bytes);
}

Event MainStateHold::end() {
  if (has_begun_) {
    stream_->record(copied_);
    is_held_ = true;
  }
  has_begun_ = false;
  return copied_;
}

void MainStateHold::wait(CodePlace place) { wait(main_.stream(), place); }

void MainStateHold::wait(Stream& writer, CodePlace place) {
  if (!is_held_) return;
  const int64_t began = span_clock_ns();
  writer.wait(copied_, place);  // wait 22
  waited_ns_ += span_clock_ns() - began;
  is_held_ = false;
}

}  // namespace fsdp
