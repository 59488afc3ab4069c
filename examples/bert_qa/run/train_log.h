// Writes train_log.jsonl, which has a JSON object on one line for each step.
#pragma once

#include <fsdp/checkpoints.h>
#include <fsdp/memory.h>
#include <fsdp/traffic.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace bert_qa {

// The measurements of a step.
struct StepRecord {
  int64_t step = 0;      // from 1
  double loss = 0;       // mean over the global batch
  double grad_norm = 0;  // before clipping
  double lr = 0;
  bool skipped = false;  // a gradient was not finite, so the step changed nothing
  // The first parameter with a non-finite gradient on some rank: "unit 'x', parameter 'x.weight'".
  std::string first_nonfinite;
  int64_t windows = 0;  // of all ranks
  double seconds = 0;
  double exposed_comm_ms = 0;  // time that this rank's compute waited for communication
  double input_ms = 0;         // time that this rank waited for its batch
  fsdp::MemoryBytes peak;      // engine buffers of this rank at the peak of the step
  // All bytes that this rank used on its device at the peak, LibTorch's tensors included. 0 without
  // a memory limit.
  int64_t device_peak_bytes = 0;
  fsdp::MemoryBytes host_peak;          // offloaded bytes
  fsdp::Traffic sent;                   // by this rank
  std::optional<fsdp::SaveStats> save;  // of a checkpoint that was completed since the last step
  double samples_per_second() const { return seconds > 0 ? windows / seconds : 0; }
};

// A writer of the log.
class TrainLog {
 public:
  // Begins a new log. Errors: IoError kCannotCreate; kIoError if the disk is full.
  explicit TrainLog(std::filesystem::path file);
  // Continues the log of a run that resumes after `step` steps. Removes the lines of later steps,
  // and lines that are not valid, such as a line that a killed run began. Sets `note` to a text for
  // the user about these lines. Errors: as above; kIoError if the file cannot be read.
  TrainLog(std::filesystem::path file, int64_t step, std::string& note);
  TrainLog(TrainLog&& other) = delete;
  ~TrainLog();
  // Writes a line without buffering it in the process.
  // Errors: IoError kIoError; the file then ends with the last complete line.
  void append(const StepRecord& record);

 private:
  std::filesystem::path path_;
  int file_ = -1;
  int64_t bytes_ = 0;  // bytes of complete lines
};

}  // namespace bert_qa
