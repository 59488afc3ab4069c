// StepSpans: the spans of training steps in a trace.
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/span_log.h"

namespace fsdp {

// The spans of an engine's training steps. They have no gaps: a step begins where the previous step
// ends, and the first step begins where the trace begins. Times are those of the compute stream.
// Not thread-safe: the rank's thread must call it between forwards and backwards.
class StepSpans {
 public:
  // Requires: `log` outlives this object.
  explicit StepSpans(SpanLog& log) : log_(log) {}

  // Begins to record steps in the log. Does nothing inside another trace.
  void begin(Stream& compute) {
    if (!span_) open(compute);
  }
  // Ends a trace. A step that has not ended is not recorded.
  void forget() { span_.reset(); }

  // Records that a backward has reduced gradients, so the step has gradients.
  void note_reduced() { has_reduced_ = true; }
  bool has_reduced() const { return has_reduced_; }
  // Ends the step. Called after an optimizer of fsdp has issued its step, or after an optimizer of
  // LibTorch has made its step. If two optimizers step, the second call has no effect.
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
  std::optional<StreamSpan> span_;  // of the running step, while a trace records
  int64_t number_ = 1;
  bool has_reduced_ = false;
};

}  // namespace fsdp
