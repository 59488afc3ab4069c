// Writes scalars for TensorBoard.
//
//   std::optional<fsdp::EventLog> log;  // on rank 0
//   if (mesh.rank() == 0) log.emplace("out/runs", /*done=*/step);
//   …
//   if (log) log->scalar("train/loss", step, loss);
//
// `tensorboard --logdir out/runs` shows the curves, also while the program runs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace fsdp {

// An event file of TensorBoard: FOLDER/events.out.tfevents.SECONDS.HOST.PID.N. Each scalar is
// written at once without a buffer in the process, so a killed process loses none. Not thread-safe.
// If several ranks write into one folder, their curves are mixed, so let only one rank write.
class EventLog {
 public:
  // Creates the folder and begins a new file in it. `done` is the number of steps that the training
  // has done: 0, or the result of Checkpoints::resume. TensorBoard then drops the scalars of later
  // steps in the folder's earlier files, so a run that resumes continues its curves.
  // Errors: IoError kCannotCreate if the folder or the file cannot be created; kIoError if the disk
  //   is full or fails.
  explicit EventLog(const std::filesystem::path& folder, int64_t done = 0);
  ~EventLog();
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;

  // Adds a value to the curve `tag`. TensorBoard groups curves by the part before the first '/'.
  // The value is stored as float32. It may be NaN or infinite.
  // Errors: IoError kIoError; the file then ends with the last complete record.
  void scalar(std::string_view tag, int64_t step, double value);

  const std::filesystem::path& file() const { return path_; }

 private:
  void append(const std::string& event);

  std::filesystem::path path_;
  int file_ = -1;
  int64_t bytes_ = 0;  // bytes of complete records
};

}  // namespace fsdp
