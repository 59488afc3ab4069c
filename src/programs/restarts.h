// Restarts: decides whether a job that failed is started again (fsdp-run --max-restarts).
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fsdp {

struct RestartOptions {
  int max_restarts = 0;        // limit of restarts in a row without a new checkpoint
  int min_ranks = 0;           // least number of ranks after restarts; 0: as many as at the start
  bool several_hosts = false;  // the hosts that come decide the number of ranks
  // The pause before each restart. If it is not set, the pauses are 1, 2, 4, … and at most 30
  // seconds.
  std::optional<std::chrono::seconds> pause;
};

// How one start of the job ended, and how far it got (JobProgress).
struct FailedStart {
  int code = 0;                // exit code that the launcher would return without a restart
  int rank = 0;                // the first rank that failed
  int wait_status = 0;         // of this rank
  bool out_of_memory = false;  // the kernel killed this rank for lack of memory
  int64_t step = -1;  // the last step that was done; -1: none, or the program does not tell
  int64_t saved = 0;  // number of checkpoints that this start saved
};

class Restarts {
 public:
  struct Next {
    int ranks = 0;
    std::chrono::seconds pause{0};
  };

  Restarts(const RestartOptions& options, int ranks) : options_(options), ranks_(ranks) {}

  // Returns the number of ranks and the pause for the next start of the job, or nothing if the job
  // is not started again. Call it once for each start that failed. It returns nothing
  // - after --max-restarts restarts in a row without a new checkpoint,
  // - after an exit code that needs a change of the command line, a file or the program,
  // - if the program crashes with the same signal at the same step twice in a row,
  // - if the kernel kills a rank for lack of memory at two starts in a row.
  // After three failures of one rank before the first step, the job continues with one rank fewer,
  // if --min-ranks allows it.
  std::optional<Next> after(const FailedStart& failed);
  // Returns one line about the last decision: "restart 1 of 3 in 2 s, with 4 ranks", or why the job
  // is not restarted. Empty if there are no restarts at all.
  const std::string& reason() const { return reason_; }

 private:
  bool gives_up(const FailedStart& failed);
  void drop_rank(const FailedStart& failed);

  const RestartOptions options_;
  int ranks_;
  int used_ = 0;                     // restarts since the last checkpoint
  std::optional<FailedStart> last_;  // the failure before this one
  std::vector<int> early_failures_;  // by rank: failures before the first step, in a row
  std::string reason_;
};

}  // namespace fsdp
