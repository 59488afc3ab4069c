// Passes the output of ranks to the launcher's stdout and stderr.
#pragma once

#include <atomic>
#include <string>
#include <thread>

#include "base/descriptor.h"
#include "error_lines.h"

namespace fsdp {

// A relay for the output of ranks. Without a log folder, ranks write directly to the launcher's
// stdout. Their stderr passes through this class, which shows each error once. With a log folder,
// ranks write to files, and this class copies the stdout file of rank 0 to the launcher's stdout.
class RankOutput {
 public:
  // `followed` is the path of rank 0's stdout file in the log folder, or empty.
  RankOutput(std::string followed, bool all_errors);
  ~RankOutput();
  RankOutput(const RankOutput&) = delete;
  RankOutput& operator=(const RankOutput&) = delete;

  // Makes the pipe of this class the stderr of the calling rank process. With a log folder it does
  // nothing.
  void become_stderr() const;
  // Starts the thread that shows output. The process must not fork afterwards.
  void start();
  // Waits until all output of the ranks is shown. Requires: the ranks have ended.
  void finish();
  // Returns true if a rank printed an error with this exit code (ErrorLines::has_said). Requires:
  // finish() has returned.
  bool has_said(int code) const { return errors_.has_said(code); }

 private:
  void show();
  bool show_errors();
  bool show_followed();

  std::string followed_;
  Descriptor read_end_, write_end_;  // a pipe that is the stderr of all ranks
  Descriptor followed_file_;
  ErrorLines errors_;
  std::atomic<bool> ended_ = false;
  std::thread thread_;
};

}  // namespace fsdp
