// The options of periodic checkpoints, and their flags.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace fsdp {

// Selects what happens if a checkpoint cannot be written.
enum class OnSaveError : uint8_t {
  kStop,      // the job ends with exit code 73 or 74
  kContinue,  // warns and continues the training; the earlier checkpoints are kept
};

struct CheckpointOptions {
  // The folder of the checkpoints (--save-dir). The program sets its default. Empty: no
  // checkpoints.
  std::filesystem::path folder{};
  int64_t save_steps = 0;        // --save-steps: number of steps between two saves; 0: never
  int64_t save_total_limit = 0;  // --save-total-limit: number to keep, 2 or more; 0: all
  // --resume: "none"; "auto" for the newest checkpoint of `folder`, if there is one; or the folder
  // of a checkpoint. Empty: "auto" if a launcher has restarted the job, else "none".
  std::string resume{};
  bool resume_weights_only =
      false;                     // --resume-weights-only: load weights and buffers; begin at step 0
  bool save_only_model = false;  // --save-only-model: save weights and buffers only
  OnSaveError on_save_error = OnSaveError::kStop;  // --on-save-error

  // Sets `folder` to OUTPUT/checkpoints, unless it is set or `output` is empty.
  void set_default_folder(const std::filesystem::path& output) {
    if (folder.empty() && !output.empty()) folder = output / "checkpoints";
  }
};

}  // namespace fsdp
