// Writes train_log.jsonl, a line with a JSON object for each step.
#pragma once

#include <fsdp/memory.h>
#include <fsdp/traffic.h>

#include <cstdint>
#include <filesystem>
#include <string>

namespace bert_qa {

// The measurements of a step.
struct StepRecord {
  int64_t step = 0;      // from 1
  double loss = 0;       // mean over the global batch
  double grad_norm = 0;  // before clipping
  double lr = 0;
  bool skipped = false;  // a gradient was not finite, so the step changed nothing
  // "unit 'x', parameter 'x.weight'": the first parameter with a gradient that is not finite on a
  // rank.
  std::string first_nonfinite;
  int64_t windows = 0;  // of all ranks
  double seconds = 0;
  double exposed_comm_ms = 0;  // time that this rank's compute waited for communication
  double input_ms = 0;         // time that this rank waited for its batch
  fsdp::MemoryBytes peak;      // engine buffers of this rank at the step's highest point
  // With a memory limit, else 0: all bytes that this rank held of its device then, LibTorch's
  // tensors included.
  int64_t device_peak_bytes = 0;
  fsdp::MemoryBytes host_peak;  // offloaded bytes
  fsdp::Traffic sent;           // by this rank
  double samples_per_second() const { return seconds > 0 ? windows / seconds : 0; }
};

// A writer of the log.
class TrainLog {
 public:
  // Errors: IoError kCannotCreate; kIoError if the disk is full.
  explicit TrainLog(std::filesystem::path file);
  TrainLog(TrainLog&& other) = delete;
  ~TrainLog();
  // Writes a line, without a buffer of the process. Errors: IoError kIoError; the file then ends
  // with the last complete line.
  void append(const StepRecord& record);

 private:
  std::filesystem::path path_;
  int file_;
  int64_t bytes_ = 0;  // of whole lines
};

}  // namespace bert_qa
