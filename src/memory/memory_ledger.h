// Counts the engine's bytes: what each category uses now and at its peak, what the system has
// given.
#pragma once

#include <fsdp/memory.h>

#include <cstdint>

#include "runtime/span_log.h"

namespace fsdp {

// Not thread-safe: the engine's mutex covers it.
class MemoryLedger {
 public:
  // With a log, every change is noted there while it is on.
  explicit MemoryLedger(SpanLog* log = nullptr) : log_(log) {}

  void take(MemoryCategory category, int64_t bytes);
  void give(MemoryCategory category, int64_t bytes);
  // The system or driver was asked for `bytes` more, or given them back (negative).
  void hold(int64_t bytes);
  void count_overflow() { ++stats_.overflow_slots; }
  void reset_peak() { stats_.peak = stats_.in_use; }
  // The highest total since the last begin_phase, by category at that moment: the engine's own
  // mark, beside the user's.
  void begin_phase() { phase_peak_ = stats_.in_use; }
  const MemoryBytes& phase_peak() const { return phase_peak_; }

  const MemoryStats& stats() const { return stats_; }

  // Notes what is in use now.
  void note() const;

 private:
  MemoryStats stats_;
  MemoryBytes phase_peak_;
  SpanLog* log_;
};

}  // namespace fsdp
