// StepSpans: the span of each training step in a trace.
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/span_log.h"

namespace fsdp {

// The spans of an engine's training steps. They follow each other without a gap: a step
// begins where the one before ends, the first one where the trace begins. Times are those of the
// compute stream. Not thread-safe: the rank's thread calls it between forwards and backwards.
class StepSpans {
 public:
  // Requires: `log` outlives it.
  explicit StepSpans(SpanLog& log) : log_(log) {}

  // Begins to show steps in the log. Does nothing inside another trace.
  void begin(Stream& compute) {
    if (!span_) open(compute);
  }
  // Ends a trace. The running step is in no trace.
  void forget() { span_.reset(); }

  // Notes that a backward has reduced: the step has gradients.
  void note_reduced() { has_reduced_ = true; }
  bool has_reduced() const { return has_reduced_; }
  // Ends the step once an optimizer has issued its own, or an optimizer of LibTorch's has made it.
  // The second of two optimizers ends nothing.
  void end(Stream& compute) {
    if (!has_reduced_) return;
    const bool shown = span_.has_value();
    span_.reset();
    ++number_;
    has_reduced_ = false;
    if (shown) open(compute);
  }

 private:
  void open(Stream& compute) {
    span_.emplace(log_, compute,
                  Span{.lane = SpanLane::kStep, .what = "step", .subject = {}, .number = number_});
  }

  SpanLog& log_;
  std::optional<StreamSpan> span_;  // of the running step, while a trace is taken
  int64_t number_ = 1;
  bool has_reduced_ = false;
};

}  // namespace fsdp
