// Measures training steps. All logs get the names of the fields from fields_of().
#pragma once

#include <fsdp/checkpoints.h>
#include <fsdp/engine.h>
#include <fsdp/event_log.h>
#include <fsdp/memory.h>
#include <fsdp/optim.h>
#include <fsdp/traffic.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

namespace training {

// The measurements of a step.
struct StepRecord {
  int64_t step = 0;      // from 1
  double loss = 0;       // mean over the global batch
  double grad_norm = 0;  // before clipping; NaN if it is not measured (optimizer_in_backward)
  double lr = 0;
  bool skipped = false;  // a gradient was not finite, so the step changed nothing
  // The first parameter with a non-finite gradient on some rank: "unit 'x', parameter 'x.weight'".
  std::string first_nonfinite;
  int64_t samples = 0;  // of all ranks
  int64_t tokens = 0;   // of all ranks; 0 if the samples are not texts
  double seconds = 0;
  std::optional<double> predicted_ms;  // planned time of the step, if rates were given
  double exposed_comm_ms = 0;          // time that this rank's compute waited for communication
  double input_ms = 0;                 // time that this rank waited for its batch
  fsdp::MemoryBytes peak;              // engine buffers of this rank at the peak of the step
  // All bytes that this rank used on its device at the peak, LibTorch's tensors included. 0 without
  // a memory limit.
  int64_t device_peak_bytes = 0;
  fsdp::MemoryBytes host_peak;          // offloaded bytes
  fsdp::Traffic sent;                   // by this rank
  std::optional<fsdp::SaveStats> save;  // of a checkpoint that was completed since the last step
  double samples_per_second() const { return seconds > 0 ? samples / seconds : 0; }
  double tokens_per_second() const { return seconds > 0 ? tokens / seconds : 0; }
};

// Returns the fields of a record, with the names that they have in all logs. A number that is not
// finite is null, because JSON has no such numbers.
nlohmann::ordered_json fields_of(const StepRecord& record);

// Adds the fields of a record to an event file, as "train/loss", "train/memory_bytes/slots", ….
void log_step(fsdp::EventLog& log, const StepRecord& record);
// Adds the numbers of an evaluation to an event file, as "eval/NAME".
void log_evaluation(fsdp::EventLog& log, int64_t step, const nlohmann::ordered_json& metrics);
// Opens an event file on rank 0 after `done` steps. Returns null on the other ranks, and if
// `folder` is empty. If this throws on rank 0, it throws on all ranks. Collective.
std::unique_ptr<fsdp::EventLog> open_event_log(const fsdp::Mesh& mesh,
                                               const std::filesystem::path& folder, int64_t done);

// Measures one step, from construction to finish().
class StepMeter {
 public:
  // Resets the engine's peaks. The engine outlives this object.
  explicit StepMeter(fsdp::Engine& engine);
  // Call this function when this rank has its batch.
  void has_batch() { input_seconds_ = seconds(); }
  // Returns `record` with the measurements of the step: norm, time, bytes. `report` is that of the
  // optimizer's step. Waits for the device.
  StepRecord finish(StepRecord record, const fsdp::StepReport& report) const;

 private:
  double seconds() const;

  fsdp::Engine& engine_;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  fsdp::EngineStats before_;
  double input_seconds_ = 0;
};

}  // namespace training
