#include "bert_qa/run/training_metrics.h"

#include <nlohmann/json.hpp>

#include "bert_qa/run/memory_report.h"

namespace bert_qa {

nlohmann::ordered_json training_metrics(const training::TrainSummary& summary,
                                        const fsdp::Engine& engine,
                                        const std::optional<fsdp::StepPlan>& plan) {
  const fsdp::Mesh& mesh = engine.mesh();
  nlohmann::ordered_json metrics = {
      {"train_loss", summary.last_loss},
      {"train_steps", summary.steps},
      {"skipped_steps", summary.skipped_steps},
      {"train_samples", summary.samples},
      {"train_runtime", summary.seconds},
      {"train_samples_per_second", summary.samples_per_second()},
      {"exposed_comm_ms_per_step",
       summary.steps > 0 ? summary.exposed_comm_ms / static_cast<double>(summary.steps) : 0.0},
      {"input_ms_per_step",
       summary.steps > 0 ? summary.input_ms / static_cast<double>(summary.steps) : 0.0},
      {"input_share", summary.input_share()},
      {"peak_memory_bytes", mesh.max(summary.peak_engine_bytes, "peak")},
      {"peak_resident_bytes", mesh.max(peak_resident_bytes(), "resident")},
      {"sent_bytes_per_step", summary.sent_bytes},
      {"world_size", mesh.world_size()}};
  const fsdp::Options& options = engine.options();
  if (options.memory_limit > 0) {
    metrics["memory_limit"] = options.memory_limit;
    metrics["peak_device_bytes"] = mesh.max(summary.peak_device_bytes, "device");
  }
  if (options.cpu_offload) {
    metrics["peak_host_bytes"] = mesh.max(summary.peak_host_bytes, "host");
  }
  if (summary.predicted_ms) {
    metrics["predicted_step_ms"] = *summary.predicted_ms;
    metrics["median_step_ms"] = summary.median_step_ms();
  }
  if (!plan) return metrics;
  // The plan is for one micro-batch.
  metrics["planned_engine_bytes"] = plan->memory.peak_bytes();
  metrics["planned_sent_bytes"] = plan->traffic.total_bytes();
  if (options.memory_limit > 0) metrics["planned_device_bytes"] = plan->peak_bytes();
  if (options.cpu_offload) metrics["planned_host_bytes"] = plan->memory.host_peak.total();
  return metrics;
}

std::string device_use_of(const fsdp::Engine& engine, const std::optional<fsdp::StepPlan>& plan,
                          const training::TrainSummary& measured) {
  const fsdp::Mesh& mesh = engine.mesh();
  DeviceUse use{.limit_bytes = engine.options().memory_limit};
  if (use.limit_bytes == 0 || measured.peak_device_bytes == 0) return {};
  const bool differs = measured.peak_engine_bytes != measured.planned_engine_bytes;
  use.engine_as_planned = mesh.max(differs, "engine bytes") == 0;
  use.measured_bytes = mesh.max(measured.peak_device_bytes, "device bytes");
  use.measured_host_bytes = mesh.max(measured.peak_host_bytes, "host bytes");
  if (!plan) return {};
  use.planned_bytes = plan->peak_bytes();
  use.planned_host_bytes = plan->memory.host_peak.total();
  return device_use(use);
}

}  // namespace bert_qa
