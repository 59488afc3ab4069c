// JobProgress: the number of a job's last step and of its checkpoints, in memory that the ranks
// share with their launcher. The launcher owns the memory, so the numbers outlive the ranks.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "comm/job/job_memory.h"

namespace fsdp {

// The progress of a job. Rank 0 writes the numbers, and fsdp-run reads them. fsdp-run makes a new
// object each time it starts the job.
class JobProgress {
 public:
  // Creates the memory, for a launcher. Errors: DeviceError if the system cannot create it.
  static JobProgress create();
  // Maps the memory that the launcher created (FSDP_PROGRESS_FD). Returns nothing if the launcher
  // created none. Errors: InvalidArgument (78) if the descriptor is closed.
  // DeviceError if it cannot be mapped.
  static std::optional<JobProgress> inherited();

  int descriptor() const { return file_.get(); }
  // The last step that the job has done; -1 before the first one.
  std::atomic<int64_t>& step() const { return numbers().step; }
  // The number of checkpoints that the job has saved.
  std::atomic<int64_t>& saved() const { return numbers().saved; }

 private:
  struct Numbers {
    std::atomic<int64_t> step{-1};
    std::atomic<int64_t> saved{0};
  };

  explicit JobProgress(Descriptor file);
  Numbers& numbers() const { return *reinterpret_cast<Numbers*>(memory_.data()); }

  Descriptor file_;
  Mapping memory_;
};

}  // namespace fsdp
