// The options of periodic checkpoints, and their flags.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>

namespace fsdp {

// Selects what happens if a checkpoint cannot be written.
enum class OnSaveError : uint8_t {
  kStop,      // the job ends with exit code 73 or 74
  kContinue,  // warns and continues the training; the earlier checkpoints are kept
};

// The bytes of one checkpoint on disk.
struct CheckpointSize {
  // The tensors of all ranks: weights, buffers, optimizer state, random states. Exact.
  int64_t tensor_bytes = 0;
  int64_t rank_bytes = 0;  // the bytes of tensors that this rank writes
  // An upper bound of all files, with their headers, hashes and the manifest. It allows for 16 KiB
  // of the program's values.
  int64_t most_bytes = 0;
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
  // --save-async: copy the state to memory, and write the copy to disk while the training
  // continues. Needs host memory of the size of this rank's file.
  bool save_async = false;
  // --save-memory-steps: most steps that a killed job repeats, because fsdp-run --max-restarts
  // resumes it from a copy of the state in the launcher's memory; 0: no copies. Needs host memory
  // of twice the size of this rank's file.
  int64_t save_memory_steps = 0;
  OnSaveError on_save_error = OnSaveError::kStop;  // --on-save-error

  // Sets `folder` to OUTPUT/checkpoints, unless it is set or `output` is empty.
  void set_default_folder(const std::filesystem::path& output) {
    if (folder.empty() && !output.empty()) folder = output / "checkpoints";
  }
  // Throws InvalidArgument (64) for values that do not fit together. The error names the flag.
  void require_valid() const;
  // Returns the number of copies of the state that a rank has in memory: one with save_async, two
  // with save_memory_steps.
  int64_t state_copies() const { return (save_async ? 1 : 0) + (save_memory_steps > 0 ? 2 : 0); }
  // Returns the number of steps between two copies in memory. A copy is complete when the next step
  // ends, so there is one step less than save_memory_steps. If that is 1, after_step() waits.
  int64_t memory_copy_steps() const { return std::max<int64_t>(save_memory_steps - 1, 1); }
  // Returns the number of checkpoints for which the disk must have room: the limit + 1, because the
  // earlier ones exist while a new one is written; 2 without a limit.
  int64_t most_at_once() const;
  // Returns "a checkpoint takes 1.2 GiB on disk (0.6 GiB from rank 0), at most 3 exist at once (3.6
  // GiB)", and if save_steps is set, ", one every 100 steps in FOLDER". With copies in memory, "; 2
  // copies of rank 0's part take 1.2 GiB of memory" follows. `size` is rank 0's.
  std::string describe(const CheckpointSize& size) const;
};

}  // namespace fsdp
