#include "training/step_record.h"

#include <fsdp/agreement.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace training {
namespace {

using nlohmann::ordered_json;

ordered_json number(double value) {
  return std::isfinite(value) ? ordered_json(value) : ordered_json(nullptr);
}

// Adds all numbers of `value`. Members of an object get the object's tag before their own.
void log_numbers(fsdp::EventLog& log, const std::string& tag, int64_t step,
                 const ordered_json& value) {
  if (value.is_object()) {
    for (const auto& [name, member] : value.items()) {
      log_numbers(log, tag + "/" + name, step, member);
    }
  } else if (value.is_boolean()) {
    log.scalar(tag, step, value.get<bool>() ? 1 : 0);
  } else if (value.is_number()) {
    log.scalar(tag, step, value.get<double>());
  } else if (value.is_null()) {
    log.scalar(tag, step, std::numeric_limits<double>::quiet_NaN());
  }
}

}  // namespace

ordered_json fields_of(const StepRecord& record) {
  ordered_json memory;
  for (int i = 0; i < fsdp::kMemoryCategories; ++i) {
    const auto category = static_cast<fsdp::MemoryCategory>(i);
    memory[std::string(fsdp::name_of(category))] = record.peak[category];
  }
  ordered_json fields = {{"step", record.step},
                         {"loss", number(record.loss)},
                         {"grad_norm", number(record.grad_norm)},
                         {"lr", record.lr},
                         {"samples_per_second", record.samples_per_second()},
                         {"exposed_comm_ms", record.exposed_comm_ms},
                         {"input_ms", record.input_ms},
                         {"skipped", record.skipped},
                         {"memory_bytes", memory},
                         {"sent_bytes", record.sent.total_bytes()}};
  if (record.tokens > 0) fields["tokens_per_second"] = record.tokens_per_second();
  if (record.predicted_ms) {
    fields["step_ms"] = record.seconds * 1e3;
    fields["predicted_ms"] = *record.predicted_ms;
  }
  if (!record.first_nonfinite.empty()) fields["first_nonfinite"] = record.first_nonfinite;
  if (record.save) {
    fields["save_step"] = record.save->step;
    fields["save_stall_ms"] = record.save->stall_ms;
    fields["save_seconds"] = record.save->seconds;
    fields["save_bytes"] = record.save->bytes;
  }
  return fields;
}

void log_step(fsdp::EventLog& log, const StepRecord& record) {
  ordered_json fields = fields_of(record);
  fields.erase("step");
  log_numbers(log, "train", record.step, fields);
}

void log_evaluation(fsdp::EventLog& log, int64_t step, const ordered_json& metrics) {
  log_numbers(log, "eval", step, metrics);
}

std::unique_ptr<fsdp::EventLog> open_event_log(const fsdp::Mesh& mesh,
                                               const std::filesystem::path& folder, int64_t done) {
  std::unique_ptr<fsdp::EventLog> log;
  fsdp::run_or_throw_on_all_ranks(mesh, "opening the event file", [&] {
    if (mesh.rank() == 0 && !folder.empty()) log = std::make_unique<fsdp::EventLog>(folder, done);
  });
  return log;
}

StepMeter::StepMeter(fsdp::Engine& engine) : engine_(engine), before_(engine.stats()) {
  engine_.reset_peak_memory();
}

double StepMeter::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
}

StepRecord StepMeter::finish(StepRecord record, const fsdp::StepReport& report) const {
  record.grad_norm = engine_.options().optimizer_in_backward
                         ? std::numeric_limits<double>::quiet_NaN()
                         : report.gradients.norm();
  record.skipped = report.skipped();
  record.first_nonfinite = report.gradients.first_nonfinite();
  const fsdp::EngineStats stats = engine_.stats();
  record.seconds = seconds();
  record.exposed_comm_ms =
      static_cast<double>(stats.exposed_comm_ns - before_.exposed_comm_ns) / 1e6;
  record.input_ms = input_seconds_ * 1e3;
  record.peak = stats.memory.peak;
  record.device_peak_bytes = stats.memory.device_peak;
  record.host_peak = stats.memory.host_peak;
  record.sent = stats.sent - before_.sent;
  return record;
}

}  // namespace training
