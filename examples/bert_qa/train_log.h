// train_log.jsonl: what each step did, a JSON object a line.
#pragma once

#include <fsdp/memory.h>

#include <cstdint>
#include <filesystem>
#include <fstream>

namespace bert_qa {

struct StepRecord {
  int64_t step = 0;      // from 1
  double loss = 0;       // mean over the global batch
  double grad_norm = 0;  // before clipping
  double lr = 0;
  bool skipped = false;  // a gradient was not finite; nothing was changed
  int64_t windows = 0;   // of all ranks
  double seconds = 0;
  double exposed_comm_ms = 0;  // in which this rank's compute waited for others
  double input_ms = 0;         // in which this rank waited for its batch
  fsdp::MemoryBytes peak;      // engine buffers of this rank at the step's highest point
  double samples_per_second() const { return seconds > 0 ? windows / seconds : 0; }
};

class TrainLog {
 public:
  // Errors: IoError kCannotCreate.
  explicit TrainLog(std::filesystem::path file);
  // Each line is on its way to the disk when this returns. Errors: IoError kIoError.
  void append(const StepRecord& record);

 private:
  std::filesystem::path path_;
  std::ofstream file_;
};

}  // namespace bert_qa
