#include "training/train_summary.h"

#include <algorithm>

namespace training {

void TrainSummary::add(const StepRecord& record) {
  steps += 1;
  skipped_steps += record.skipped ? 1 : 0;
  if (record.skipped && first_nonfinite.empty()) {
    first_nonfinite = record.first_nonfinite;
  }
  samples += record.samples;
  seconds += record.seconds;
  last_loss = record.loss;
  exposed_comm_ms += record.exposed_comm_ms;
  input_ms += record.input_ms;
  peak_engine_bytes = std::max(peak_engine_bytes, record.peak.total());
  peak_device_bytes = std::max(peak_device_bytes, record.device_peak_bytes);
  peak_host_bytes = std::max(peak_host_bytes, record.host_peak.total());
  sent_bytes = record.sent.total_bytes();
}

}  // namespace training
