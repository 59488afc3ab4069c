// The span of each training step in a trace.
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/span_log.h"

namespace fsdp {

// Steps follow each other without a gap: one begins where the one before has ended, the first one
// that a trace shows where the trace begins. Times are those of the stream that computes. Not
// thread-safe: the rank's thread calls it between forwards and backwards.
class StepSpans {
 public:
  // `log` lives as long.
  explicit StepSpans(SpanLog& log) : log_(log) {}

  // The log keeps what happens from here on. Nothing inside of another trace.
  void begin(Stream& compute) {
    if (!span_) open(compute);
  }
  // The log keeps nothing any more. A step that has not ended is in no trace.
  void forget() { span_.reset(); }

  // A backward has reduced: the step has gradients.
  void note_reduced() { has_reduced_ = true; }
  bool has_reduced() const { return has_reduced_; }
  // The optimizer's step is issued, or was, by an optimizer of LibTorch's. The second of two
  // optimizers ends nothing.
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
  std::optional<StreamSpan> span_;  // of the step under way, while a trace is taken
  int64_t number_ = 1;
  bool has_reduced_ = false;
};

}  // namespace fsdp
