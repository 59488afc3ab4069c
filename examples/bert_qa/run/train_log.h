// Writes train_log.jsonl, which has a JSON object on one line for each step.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "training/step_record.h"

namespace bert_qa {

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
  void append(const training::StepRecord& record);

 private:
  std::filesystem::path path_;
  int file_ = -1;
  int64_t bytes_ = 0;  // bytes of complete lines
};

}  // namespace bert_qa
