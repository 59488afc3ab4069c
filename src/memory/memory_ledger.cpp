#include "memory/memory_ledger.h"

namespace fsdp {

void MemoryLedger::take(MemoryCategory category, int64_t bytes) {
  stats_.in_use[category] += bytes;
  // The peak has the bytes of all categories at the moment of the highest total. It is not combined
  // from the peaks of single categories at different moments.
  if (stats_.in_use.total() > stats_.peak.total()) stats_.peak = stats_.in_use;
  if (stats_.in_use.total() > phase_peak_.total()) phase_peak_ = stats_.in_use;
  note();
}

void MemoryLedger::give(MemoryCategory category, int64_t bytes) {
  stats_.in_use[category] -= bytes;
  note();
}

void MemoryLedger::note() const {
  if (log_ == nullptr || !log_->is_on()) return;
  static_assert(kByteCounts == kMemoryCategories);
  log_->add_now(stats_.in_use.bytes);
}

void MemoryLedger::hold(int64_t bytes) {
  stats_.held_bytes += bytes;
  if (bytes > 0) ++stats_.system_allocations;
}

}  // namespace fsdp
