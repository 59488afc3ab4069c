// RankLogs: the files in fsdp-run's --log-dir.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/job/control_segment.h"

namespace fsdp {

// How the process of a rank ended.
struct RankEnd {
  int rank = 0;
  pid_t pid = 0;
  int wait_status = 0;
  bool is_first = false;     // true for the rank that failed first
  bool by_launcher = false;  // true if the launcher killed it after the grace period
};

class RankLogs {
 public:
  struct Place {
    std::string folder;  // empty: there are no logs, and the functions below do nothing
    int attempt = 0;     // number of restarts before this start of the job
    int host = -1;       // number of this host if the job has several, which may share the folder
  };
  // The logs of a restarted job do not replace earlier ones.
  explicit RankLogs(Place place) : place_(std::move(place)) {}

  bool exist() const { return !place_.folder.empty(); }
  // Returns "D/rank-0.out", and "D/rank-0.2.out" after two restarts. `stream`: "out" or "err".
  std::string path(int rank, const char* stream) const;
  // Creates the folder. Errors: IoError kCannotCreate if it cannot be written.
  void create_folder() const;
  // Makes the files of the rank in the log folder its stdout and stderr. Called in the process of
  // the rank.
  void redirect(int rank) const;
  // Returns the last error line in the log of rank `root`, the first rank that failed. If several
  // ranks throw the same error, only one of them may print it. So if the log has no error line,
  // returns a line with the exit code `code` from another rank's log, or an empty string. Code 75
  // is not searched for in other logs: it only says that another rank has failed.
  std::string error_of(int root, int code, RankRange ranks) const;
  // Writes ends.jsonl, one line for each rank, or ends-host-H.jsonl if the job has several hosts. A
  // restarted job appends its lines.
  // Errors: IoError kIoError.
  void write_ends(const std::vector<RankEnd>& ends) const;

 private:
  Place place_;
};

}  // namespace fsdp
