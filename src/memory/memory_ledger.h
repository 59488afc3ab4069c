// MemoryLedger counts an engine's bytes by category: the bytes in use now, and at the peak. It also
// counts the bytes that are allocated from the system.
#pragma once

#include <fsdp/memory.h>

#include <cstdint>

#include "runtime/span_log.h"

namespace fsdp {

// An engine's byte counts. Not thread-safe: the engine's mutex guards it.
class MemoryLedger {
 public:
  // If `log` is not null and is enabled, every change is logged in `log`.
  explicit MemoryLedger(SpanLog* log = nullptr) : log_(log) {}

  void take(MemoryCategory category, int64_t bytes);
  void give(MemoryCategory category, int64_t bytes);
  // Adds `bytes` to the bytes that are allocated from the system or driver. A negative value means
  // that memory was returned.
  void hold(int64_t bytes);
  void count_overflow() { ++stats_.overflow_slots; }
  void reset_peak() { stats_.peak = stats_.in_use; }
  // Starts a phase. phase_peak() has the bytes of all categories at the moment of the highest total
  // since the start of the phase. The engine uses this peak. It is independent of the peak that
  // users read and reset (reset_peak).
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
