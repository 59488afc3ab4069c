// MemoryLedger: counts an engine's bytes, by category now and at the peak, and the bytes that the
// system has provided.
#pragma once

#include <fsdp/memory.h>

#include <cstdint>

#include "runtime/span_log.h"

namespace fsdp {

// An engine's byte counts. Not thread-safe: the engine's mutex guards it.
class MemoryLedger {
 public:
  // Logs every change in `log`, if there is one and it is on.
  explicit MemoryLedger(SpanLog* log = nullptr) : log_(log) {}

  void take(MemoryCategory category, int64_t bytes);
  void give(MemoryCategory category, int64_t bytes);
  // Counts `bytes` more from the system or driver; negative: bytes that returned to it.
  void hold(int64_t bytes);
  void count_overflow() { ++stats_.overflow_slots; }
  void reset_peak() { stats_.peak = stats_.in_use; }
  // Starts a phase; its peak is the highest total from here on, by category at that moment. The
  // engine's own mark, beside the user's (reset_peak).
  void begin_phase() { phase_peak_ = stats_.in_use; }
  const MemoryBytes& phase_peak() const { return phase_peak_; }

  const MemoryStats& stats() const { return stats_; }

  // Logs the bytes in use now.
  void note() const;

 private:
  MemoryStats stats_;
  MemoryBytes phase_peak_;
  SpanLog* log_;
};

}  // namespace fsdp
