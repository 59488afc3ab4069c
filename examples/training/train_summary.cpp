#include "training/train_summary.h"

#include <fmt/format.h>
#include <fsdp/program_text.h>

#include <algorithm>
#include <cstdlib>

#include "terminal/status_line.h"

namespace training {

void TrainSummary::add(const StepRecord& record) {
  steps += 1;
  skipped_steps += record.skipped ? 1 : 0;
  if (record.skipped && first_nonfinite.empty()) {
    first_nonfinite = record.first_nonfinite;
  }
  samples += record.samples;
  tokens += record.tokens;
  seconds += record.seconds;
  last_loss = record.loss;
  exposed_comm_ms += record.exposed_comm_ms;
  input_ms += record.input_ms;
  peak_engine_bytes = std::max(peak_engine_bytes, record.peak.total());
  peak_device_bytes = std::max(peak_device_bytes, record.device_peak_bytes);
  peak_host_bytes = std::max(peak_host_bytes, record.host_peak.total());
  sent_bytes = record.sent.total_bytes();
  predicted_ms = record.predicted_ms;
  if (predicted_ms) step_ms.push_back(record.seconds * 1e3);
  add(record.save);
}

double TrainSummary::median_step_ms() const {
  std::vector<double> sorted = step_ms;
  std::ranges::sort(sorted);
  const size_t half = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

void TrainSummary::add(const std::optional<fsdp::SaveStats>& save) {
  if (!save) return;
  ++saves;
  save_stall_ms += save->stall_ms;
}

void TrainSummary::add_to(fsdp::TrainingState& state) {
  state.add("skipped_steps", skipped_steps)
      .add("first_nonfinite", first_nonfinite)
      .add("samples", samples)
      .add("tokens", tokens)
      .add("seconds", seconds)
      .add("last_loss", last_loss)
      .add("exposed_comm_ms", exposed_comm_ms)
      .add("input_ms", input_ms);
}

std::string summary_text(const fsdp::Engine& engine, const TrainSummary& summary) {
  const auto counted = [](int64_t count, const char* what) {
    return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
  };
  const int64_t peak = engine.mesh().max(summary.peak_engine_bytes, "peak");
  const int64_t planned = engine.mesh().max(engine.memory_plan().peak_bytes(), "planned peak");
  std::string text =
      fmt::format("trained on {} in {}, {}: {:.1f} samples/s", counted(summary.samples, "sample"),
                  counted(summary.steps, "step"), terminal::clock_text(summary.seconds),
                  summary.samples_per_second());
  if (summary.tokens > 0) {
    text += fmt::format(", {:.0f} tokens/s", summary.tokens / std::max(summary.seconds, 1e-9));
  }
  if (peak > 0) {
    text += fmt::format("\nengine: {} a rank at peak, {}", fsdp::format_bytes(peak),
                        peak == planned ? "as planned" : "planned " + fsdp::format_bytes(planned));
  }
  if (summary.predicted_ms) {
    text += fmt::format("\npredicted {:.1f} ms, took {:.1f} ms a step (median)",
                        *summary.predicted_ms, summary.median_step_ms());
  }
  if (summary.saves > 0) {
    text += fmt::format("\n{} saved, the training waited {:.1f} s",
                        counted(summary.saves, "checkpoint"), summary.save_stall_ms / 1e3);
  }
  const char* const restarts = std::getenv("TORCHELASTIC_RESTART_COUNT");  // set by launchers
  const int64_t count = restarts == nullptr ? 0 : std::strtoll(restarts, nullptr, 10);
  if (count > 0) text += "\n" + counted(count, "restart") + " of the job";
  return text + "\n";
}

}  // namespace training
